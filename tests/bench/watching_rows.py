"""What it costs to look at a run: its history on disk, how soon commands and page show it, and the page's share of a run."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import statistics
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any, Iterator

from bench_common import Context, Row
from quality_rows import recipe_text, with_values

VIEWERS = 3
MANY_VIEWERS = 100


def milliseconds(command: list[Any], repeats: int) -> float:
    def once() -> float:
        begin = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True)
        return 1000 * (time.perf_counter() - begin)
    return statistics.median(once() for _ in range(repeats))


def first_screen_ms(command: list[Any]) -> float:
    """From the start of `watch` on a terminal of 80 x 24 until its foot is there."""
    begin = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(command[0], [str(word) for word in command])
    shown = b""
    while b"q leaves" not in shown:
        if not select.select([terminal], [], [], 10)[0]:
            raise RuntimeError(f"watch shows nothing in 10 s: {shown[-300:]!r}")
        shown += os.read(terminal, 65536)
    found = 1000 * (time.perf_counter() - begin)
    os.write(terminal, b"q")
    os.waitpid(child, 0)
    os.close(terminal)
    return found


def served(process: subprocess.Popen, context: Context, run: Path) -> tuple[str, str]:
    """Address and secret of the page that a process says it serves."""
    for line in process.stdout:
        if "page: http" not in line:
            continue
        if "?token=" not in line:
            line = subprocess.run([context.program("hedgerow"), "watch", "--web", "--run", run], capture_output=True, text=True).stdout
        found = re.search(r"(http://\S+/)\?token=(\w+)", line)
        return found.group(1), found.group(2)
    raise RuntimeError("no page was offered")


def first_paint_s(address: str, secret: str) -> float:
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(word)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        def painted() -> float:
            driver.get(f"{address}?token={secret}")
            mark = "return (performance.getEntriesByName('hedgerow-painted')[0] || {}).startTime"
            return WebDriverWait(driver, 30).until(lambda browser: browser.execute_script(mark)) / 1000
        painted()  # of a fresh browser: its own start is in it
        return statistics.median(painted() for _ in range(3))
    finally:
        driver.quit()


def large_history(context: Context) -> Iterator[Row]:
    run = context.work / "history-126"
    shutil.rmtree(run, ignore_errors=True)
    made = json.loads(subprocess.run([context.program("history_bench"), run], capture_output=True, text=True, check=True).stdout)
    hedgerow = context.program("hedgerow")
    what = "126 layers x 10,000 validations"
    yield Row(f"history of {what}: on disk", made["bytes"] / 1e6, "MB", "<= 64")
    yield Row(f"metrics, {what}", milliseconds([hedgerow, "metrics", "--run", run], context.repeats), "ms", "<= 100")
    yield Row(f"status, {what}", milliseconds([hedgerow, "status", "--run", run], context.repeats), "ms", "<= 100")
    yield Row(f"watch's first screen, {what}",
              statistics.median(first_screen_ms([hedgerow, "watch", "--run", run]) for _ in range(context.repeats)), "ms", "<= 100")
    page = subprocess.Popen([hedgerow, "watch", "--run", run, "--web"], stdout=subprocess.PIPE, text=True)
    try:
        yield Row(f"page's first paint, {what}", first_paint_s(*served(page, context, run)), "s", "<= 1")
    finally:
        page.terminate()
        page.wait()


def cpu_seconds(stat: Path) -> float:
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Viewer(threading.Thread):
    """Reads the page's stream until it ends, and counts its messages."""

    def __init__(self, address: str, secret: str) -> None:
        super().__init__(daemon=True)
        self.request = urllib.request.Request(address + "api/events?id=0", headers={"Authorization": f"Bearer {secret}"})
        self.messages = 0

    def run(self) -> None:
        try:
            with urllib.request.urlopen(self.request, timeout=60) as stream:
                for line in stream:
                    self.messages += line.startswith(b"data:")
        except OSError:
            pass  # the run is over


def watched_run(context: Context) -> Iterator[Row]:
    """A transfer of the whole model with viewers: the page's thread over the workers, and many viewers at its end."""
    run, recipe = context.work / "watched", context.work / "watched.toml"
    shutil.rmtree(run, ignore_errors=True)
    toml = with_values(recipe_text(context, "smollm2_quickstart", 0), "finetune", {"enabled": "false"})
    recipe.write_text(with_values(toml, "transfer", {"validate_every": "4"}))
    job = subprocess.Popen([context.program("hedgerow"), "run", "--run", run, "--recipe", recipe], stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    address, secret = served(job, context, run)
    viewers = [Viewer(address, secret) for _ in range(VIEWERS)]
    many: list[Viewer] = []
    for viewer in viewers:
        viewer.start()
    threading.Thread(target=job.stdout.read, daemon=True).start()
    page, workers = 0.0, {}
    while job.poll() is None:
        try:
            for task in Path(f"/proc/{job.pid}/task").iterdir():
                if (task / "comm").read_text().strip() == "page" and not many:
                    page = cpu_seconds(task / "stat")
            for child in Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split():
                workers[child] = cpu_seconds(Path(f"/proc/{child}/stat"))
        except OSError:
            pass  # it ended at this moment
        status = run / "logs" / "status.json"
        if not many and status.exists() and '"assemble"' in status.read_text() and any(run.glob("student/*")):
            many = [Viewer(address, secret) for _ in range(MANY_VIEWERS)]
            for viewer in many:
                viewer.start()
        time.sleep(0.2)
    for viewer in [*viewers, *many]:
        viewer.join(timeout=10)
    yield Row(f"the page with {VIEWERS} viewers, of the workers' CPU seconds", 100 * page / sum(workers.values()), "%", "<= 1")
    yield Row(f"of {MANY_VIEWERS} viewers at once, those that were served", float(sum(v.messages > 0 for v in many)), "",
              f">= {MANY_VIEWERS}")


def watching(context: Context) -> Iterator[Row]:
    yield from large_history(context)
    yield from watched_run(context)
