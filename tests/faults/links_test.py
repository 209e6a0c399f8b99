"""A coordinator and its worker in two network namespaces, encrypted, and the link between them cut: both ways, each way alone.

Catches: a worker that does not find back; a lease that two hold; a result of a worker that was cut off which is taken although
its task went on elsewhere; other bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
from disturbed import Disturbed, expected, report  # noqa: E402

LEASE_S = 4
COORDINATOR, WORKER = "10.77.0.1", "10.77.0.2"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Link:
    """Two namespaces with a cable between them; both go with the test."""

    def __init__(self, test: unittest.TestCase) -> None:
        self.here, self.there = f"hedgerow-{os.getpid()}-a", f"hedgerow-{os.getpid()}-b"
        for name in (self.here, self.there):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
            if made.returncode != 0:
                test.skipTest(f"no network namespace can be made here: {made.stderr.strip()}")
            test.addCleanup(subprocess.run, ["ip", "netns", "delete", name], check=False)
        ip("link", "add", "cable", "netns", self.here, "type", "veth", "peer", "name", "cable", "netns", self.there)
        for name, address in ((self.here, COORDINATOR), (self.there, WORKER)):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")

    def inside(self, name: str) -> list[str]:
        return ["ip", "netns", "exec", name]

    def cut(self, way: str) -> None:
        if way == "both":
            ip("-n", self.there, "link", "set", "cable", "down")
        else:
            ip("-n", *self._blackhole(way, "add"))

    def mend(self, way: str) -> None:
        if way == "both":
            ip("-n", self.there, "link", "set", "cable", "up")
        else:
            ip("-n", *self._blackhole(way, "delete"))

    def _blackhole(self, way: str, verb: str) -> list[str]:
        name, to = (self.there, COORDINATOR) if way == "to the coordinator" else (self.here, WORKER)
        return [name, "route", verb, "blackhole", f"{to}/32"]


class Elsewhere(threading.Thread):
    """Keeps one worker in the other namespace: the finetune stage asks it to go, and the last evaluation wants it again."""

    def __init__(self, run: Disturbed, link: Link, runs: subprocess.Popen) -> None:
        super().__init__()
        self.run_, self.link, self.runs = run, link, runs
        self.process: subprocess.Popen | None = None

    def run(self) -> None:
        command = [*self.link.inside(self.link.there), self.run_.bin / "hedgerow", "worker", "--run", self.run_.run_directory,
                   "--wait", "60", "--threads", "1"]
        while self.runs.poll() is None:
            with (self.run_.root / "worker").open("a") as log:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                self.process.wait()


class Links(unittest.TestCase):
    def setUp(self) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            self.skipTest("network namespaces need root and the command ip")
        self.link = Link(self)

    def test_cut_for_longer_than_the_lease_both_ways_and_each_way_alone(self) -> None:
        run = Disturbed(self, local=0, lease_s=LEASE_S, bind=COORDINATOR)
        refused = run.run()
        self.assertEqual(refused.code, 2, f"an address of a network without keys must be refused: {refused}")
        made = run.command("keygen", "--run", run.run_directory)
        self.assertEqual(made.code, 0, str(made))
        figures = {}
        with run.going(prefix=self.link.inside(self.link.here)) as process:
            worker = Elsewhere(run, self.link, process)
            worker.start()
            try:
                for number, way in enumerate(("both", "to the coordinator", "to the worker"), 1):
                    run.until(process, lambda: len(run.events("transfer", "checkpointed")) >= number)
                    figures[way] = self.cut(run, process, way)
                run.ends_with_the_same_bytes(process)
            finally:
                if process.poll() is None:
                    process.kill()
                run.kill_leftovers()
                worker.join()
        self.assertGreaterEqual(len(run.events("transfer", "revoked")), 2)
        report("links", lease_s=LEASE_S, seconds_to_hear_again=figures)

    def cut(self, run: Disturbed, process: subprocess.Popen, way: str) -> float:
        """Cuts the link until the lease is over, or, where heartbeats still arrive, twice as long as one; seconds to recover."""
        before = len(run.journal())
        self.link.cut(way)
        if way == "to the worker":
            time.sleep(2 * LEASE_S)  # how long the fault lasts
        else:
            run.until(process, lambda: [event for event in run.journal()[before:] if event["type"] == "revoked"])
        self.link.mend(way)
        mended = time.monotonic()
        since = len(run.journal())
        run.until(process, lambda: [event for event in run.journal()[since:]
                                    if event["type"] in ("granted", "checkpointed", "shard_committed", "done")])
        return round(time.monotonic() - mended, 2)


def setUpModule() -> None:
    if os.geteuid() == 0:
        expected()


if __name__ == "__main__":
    unittest.main()
