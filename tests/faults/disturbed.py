"""What the tests in this folder share that disturb a real run: one job, its journal as it grows, its processes by what they do.

`expected()` is what an undisturbed run of the same work gives.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Callable, Iterator

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402
from processes import stat_of  # noqa: E402

RELEASE = os.environ.get("HEDGEROW_TEST_RELEASE") == "1"
PARTIAL = 3


def release_only(test: Callable) -> Callable:
    return unittest.skipUnless(RELEASE, "of the release run: set HEDGEROW_TEST_RELEASE=1")(test)


@cache
def expected() -> dict[str, str]:
    return job.artifacts_of(job.finished_run())


class Disturbed(job.Job):
    """A run in the background, and what happens to it; `changes` and `text` as of a Job, `workers` are keys of [workers]."""

    def __init__(self, test: unittest.TestCase, changes: dict[str, object] | None = None, text: Path | None = None,
                 **workers: object) -> None:
        super().__init__({**(changes or {}), **{f"workers.{key}": value for key, value in workers.items()}}, text)
        test.addCleanup(self.close)
        self.test = test

    @contextlib.contextmanager
    def going(self, fault: str = "", action: str = "", always: bool = False, prefix: list[str] | None = None,
              options: list[str] | None = None) -> Iterator[subprocess.Popen]:
        """`hedgerow run`, with stderr in <root>/stderr. `fault` is met once, or `always` by every process that comes by."""
        environment = self.environment()
        if fault:
            environment |= {"HEDGEROW_FAULT": fault, "HEDGEROW_FAULT_ACTION": action}
            if not always:
                environment["HEDGEROW_FAULT_ONCE"] = str(self.root / f"killed.{fault}")
        with (self.root / "stderr").open("a") as log:
            process = subprocess.Popen([*(prefix or []), self.bin / "hedgerow", "run", "--run", self.run_directory, "--recipe",
                                        self.recipe, *(options or [])], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=log, env=environment)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def said(self) -> str:
        return (self.root / "stderr").read_text()

    def ends(self, process: subprocess.Popen, code: int = 0, timeout_s: float = 120) -> None:
        self.test.assertEqual(process.wait(timeout_s), code, self.said()[-3000:])

    def ends_with_the_same_bytes(self, process: subprocess.Popen) -> None:
        self.ends(process)
        self.test.assertEqual(self.artifacts(), expected())

    def resumes_with_the_same_bytes(self) -> None:
        ended = self.run()
        self.test.assertEqual(ended.code, 0, str(ended))
        self.test.assertEqual(self.artifacts(), expected())

    def journal(self) -> list[dict]:
        """Events in order, each with its `segment` and `at` (seconds)."""
        events = []
        for segment in sorted((self.run_directory / "journal").glob("*.jsonl")):
            for line in segment.read_bytes().splitlines():
                with contextlib.suppress(ValueError):  # the last one is being written
                    record = json.loads(line)
                    events.append({**record["event"], "at": seconds_of(record["at"]), "segment": int(segment.stem)})
        return events

    def events(self, task: str, *types: str) -> list[dict]:
        """Those of one task, by its name or the tokens that it was granted."""
        journal = self.journal()
        tokens = {event["token"] for event in journal if event["type"] == "granted" and event["task"].startswith(task)}
        return [event for event in journal if (not types or event["type"] in types)
                and (str(event.get("task", "")).startswith(task) or event.get("token") in tokens)]

    def until(self, process: subprocess.Popen, condition: Callable[[], object], timeout_s: float = 60) -> object:
        """What the condition gives once it is true, while the run lives."""
        return job.wait_until(lambda: condition() or None, process, timeout_s)

    def stopped(self) -> list[int]:
        """Processes of this job that SIGSTOP holds."""
        return [pid for pid in self.processes() if stat_of(pid).state == "T"]

    def kill_all(self, process: subprocess.Popen) -> None:
        """As a machine that goes down: nobody has a last word."""
        process.kill()
        process.wait()
        job.wait_until(lambda: self.kill_leftovers() or (True if not self.processes() else None), None)

    def purge(self, *patterns: str) -> int:
        """What a cleaner of scratch space does; the number of files that are gone."""
        count = 0
        for pattern in patterns:
            for path in sorted(self.run_directory.glob(pattern)):
                if path.is_dir():
                    count += sum(1 for file in path.rglob("*") if file.is_file())
                    shutil.rmtree(path, ignore_errors=True)
                elif path.exists():
                    path.unlink()
                    count += 1
        return count


def seconds_of(at: str) -> float:
    return datetime.fromisoformat(at.replace("Z", "+00:00")).timestamp()


def go_on(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def report(test: str, **figures: object) -> None:
    print(json.dumps({"test": test, **figures}), flush=True)
