"""The page of a real run in chromium: four layers of SmolLM2, real workers, one of them with a hostile name.

Catches: a page that shows a run only once it is loaded again, that does not come back after its coordinator was killed,
that lets strangers in or runs what a worker calls itself; a report that is not whole.
"""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
import unittest
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402
from browser import HOSTILE, BrowserTest  # noqa: E402

# Long enough to be watched and killed in each stage; the worker that is killed is given up after a lease.
LIVE = {"transfer.max_steps": 300, "finetune.max_steps": 12, "finetune.validate_every": 4, "workers.local": 1, "workers.lease_s": 5}


def address_in(lines: Iterable[str], run: Path) -> str:
    """What `run` (on stderr) and `watch --web` (on stdout) print, with the secret, which does not go into a log."""
    for line in lines:
        if line.startswith("page: "):
            return line.split()[1].partition("?")[0] + "?token=" + (run / "web.secret").read_text().strip()
    raise AssertionError("no line tells the page's address")


def answer(address: str, path: str = "/api/run", **fields: str) -> tuple[int, str]:
    """Status and text, asked with the secret of `address`; `fields` are of the request's head."""
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    try:
        connection.request("GET", path, headers={"Authorization": "Bearer " + parse_qs(parts.query)["token"][0], **fields})
        got = connection.getresponse()
        return got.status, got.read().decode()
    finally:
        connection.close()


class LivePageTest(BrowserTest):
    job: job.Job

    def rows(self, series: str) -> int:
        return self.js("return run.series.get(arguments[0])?.rows.length ?? 0", series)

    def until_rows(self, series: str, count: int, run: subprocess.Popen, seconds: float = 60) -> None:
        job.wait_until(lambda: self.rows(series) >= count or None, run, seconds)

    def strangers_are_refused(self, address: str) -> None:
        self.assertEqual(answer(address)[0], 200)
        for code, words, fields in ((421, "host name", {"Host": "evil.example"}),
                                    (403, "another page", {"Origin": "http://evil.example"}),
                                    (403, "another page", {"Origin": "null"}),
                                    (401, "carries the run's secret", {"Authorization": "Bearer 0123456789abcdef"})):
            for path in ("/api/run", "/api/events", "/metrics", "/"):
                with self.subTest(fields=fields, path=path):
                    status, text = answer(address, path, **fields)
                    self.assertEqual((status, text.count("\n")), (code, 1), text)
                    self.assertIn(words, text)

    def a_wrong_secret_shows_one_sentence(self, address: str) -> None:
        self.browser.get(address[:-1] + ("0" if address[-1] != "0" else "1"))
        shown = self.js("return document.body.innerText").strip()
        self.assertRegex(shown, r"^open the address that 'hedgerow run' printed: [^\n]*$")

    def open(self, address: str) -> None:
        self.browser.get(address)
        self.until(lambda: self.painted_at() is not None)
        self.assertNotIn("token", self.browser.current_url, "the secret stays in the browser's history")

    def hostile_worker(self, endpoint: str) -> subprocess.Popen:
        worker = subprocess.Popen([self.job.bin / "hedgerow-worker", "serve", "--run", self.job.run_directory, "--connect", endpoint,
                                   "--threads", "1", "--worker", HOSTILE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        return worker

    def its_name_is_shown_as_text(self) -> None:
        self.until(lambda: HOSTILE in self.text("attempts"))
        self.assertEqual(self.js("return document.querySelectorAll('main img').length"), 0)

    def fits_a_phone(self) -> None:
        self.screen(375, 812)
        self.until(lambda: self.js("return document.documentElement.clientWidth") == 375)
        self.until(lambda: self.js("return document.documentElement.scrollWidth") <= 375)
        self.screen(1360, 900)

    def test_a_run_is_followed_through_the_death_of_its_coordinator_to_its_report(self) -> None:
        self.job = job.Job(LIVE)
        self.addCleanup(self.job.close)
        command = ("run", "--run", self.job.run_directory, "--recipe", self.job.recipe)
        with self.job.started(*command) as run:
            address = address_in(run.stderr, self.job.run_directory)
            held = self.job.wait_for_coordinator(self.job.run_directory, run)
            worker = self.hostile_worker(held["endpoint"])
            self.a_wrong_secret_shows_one_sentence(address)
            self.strangers_are_refused(address)
            self.errors()
            self.open(address)
            self.assertEqual(self.text("connection"), "live")
            self.js("window.isSamePage = true")
            self.collect_connections()
            self.until_rows("layer/0", 2, run)
            before = self.heat()
            self.until_rows("layer/0", 4, run)
            self.until(lambda: self.heat() != before)
            self.until(lambda: self.job.named("hedgerow-worker"))
            run.send_signal(signal.SIGKILL)  # its children live
            run.wait()
            self.until(lambda: "disconnected, retrying" in self.js("return window.said"))
            known = self.rows("layer/0")
            again = subprocess.Popen([self.job.bin / "hedgerow", *map(str, command)], stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
            self.addCleanup(again.wait)
            self.addCleanup(again.kill)
            self.assertEqual(address_in(again.stderr, self.job.run_directory), address, "the page's viewers have this one open")
            self.until(lambda: self.text("connection") == "live")
            self.until_rows("layer/0", known + 1, again)
            self.its_name_is_shown_as_text()
            self.fits_a_phone()
            worker.kill()
            self.until_rows("finetune", 2, again, 90)
            self.until(lambda: self.js("return charts.get('chart-loss')?.data.datasets[0].data.length ?? 0") >= 2)
            self.assertTrue(self.js("return run.isLive"))
            out, err = again.communicate(timeout=90)
        self.assertEqual(again.returncode, 0, err)
        self.until(lambda: self.text("connection") == "the run is over")
        self.until(lambda: self.text("state") == "done")  # it is painted with the next frame
        self.assertTrue(self.js("return window.isSamePage"), "it was loaded again")
        self.assertEqual(self.js("return run.status.term"), 2)
        self.assertIn("1 revoked", self.text("faults"))
        self.assertIn(HOSTILE, self.text("attempts"))
        self.assertEqual(self.errors(), [])
        self.a_report_needs_nobody()
        self.a_finished_run_is_shown_without_a_coordinator()

    def a_report_needs_nobody(self) -> None:
        said = self.job.command("report", "--run", self.job.run_directory)
        self.assertEqual(said.code, 0, said)
        self.browser.get((self.job.run_directory / "report.html").as_uri())
        self.until(lambda: self.painted_at() is not None)
        self.assertEqual(self.text("state"), "done")
        self.assertIn(HOSTILE, self.text("attempts"))
        self.assertGreater(self.rows("layer/3"), 10)
        self.assertGreater(self.js("return charts.size"), 5)
        self.assertEqual((self.requests(), self.errors()), ([], []))

    def a_finished_run_is_shown_without_a_coordinator(self) -> None:
        with self.job.started("watch", "--web", "--run", self.job.run_directory) as watch:
            address = address_in(watch.stdout, self.job.run_directory)
            self.open(address)
            self.assertEqual((self.text("connection"), self.text("state")), ("no coordinator", "done"))
            self.strangers_are_refused(address)
            watch.send_signal(signal.SIGINT)
            watch.wait(10)
        self.assertEqual(watch.returncode, 0)


class TakenPortTest(unittest.TestCase):
    def test_a_port_that_is_taken_gives_one_sentence_and_exit_2(self) -> None:
        tried = job.Job()
        self.addCleanup(tried.close)
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = f"127.0.0.1:{other.getsockname()[1]}"
            for words in (("run", "--recipe", tried.recipe), ("watch",)):  # the first makes the run directory
                with self.subTest(command=words[0]):
                    said = tried.command(*words, "--run", tried.run_directory, "--web", taken)
                    self.assertEqual(said.code, 2, said)
                    last = said.err.strip().splitlines()[-1]
                    self.assertRegex(last, rf"cannot listen at {taken}: the port is taken by another program; name another .*--web")


if __name__ == "__main__":
    unittest.main()
