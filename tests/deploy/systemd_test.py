"""The units of deploy/systemd: what they say by their settings, and what a real systemd makes of them with a program that ends as it
is told."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import systemd_manager

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / "deploy/systemd"
BIN = Path(os.environ["HEDGEROW_BIN"])
RUN, WORKER = "hedgerow-run@.service", "hedgerow-worker@.service"


def settings(unit: str) -> dict[str, str]:
    lines = (FOLDER / unit).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class Settings(unittest.TestCase):
    def test_systemd_finds_no_fault_with_the_units(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze on this machine")
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for unit, instance in [(RUN, "data-runs-mine"), (WORKER, "0")]:
                text = (FOLDER / unit).read_text().replace("/opt/hedgerow/bin", str(BIN))
                names.append(str(Path(folder) / unit.replace("@", f"@{instance}")))
                Path(names[-1]).write_text(text)
            said = subprocess.run(["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True, check=False)
        self.assertEqual((said.returncode, said.stderr), (0, ""))

    def test_a_stop_has_the_time_that_checkpoints_take(self):
        patience = int(re.search(r"kStopTimeout\{(\d+)\}", (TOP / "coordinator/serve/coordinator.cpp").read_text())[1])
        for unit in (RUN, WORKER):
            self.assertGreaterEqual(int(settings(unit)["TimeoutStopSec"]), patience + 15, unit)

    def test_every_option_that_is_used_is_known_to_the_program(self):
        for unit in (RUN, WORKER):
            program, command, *words = settings(unit)["ExecStart"].split()
            self.assertEqual(program, "/opt/hedgerow/bin/hedgerow")
            known = subprocess.run([str(BIN / "hedgerow"), "help", command], capture_output=True, text=True, check=True).stdout
            for word in words:
                if word.startswith("--"):
                    self.assertRegex(known, rf"(?m)^ .*{word}\b")

    def test_what_would_break_adoption_mpi_or_gpus_is_left_out(self):
        for unit in (RUN, WORKER):
            for name in ["PrivateTmp", "PrivateDevices", "MemoryDenyWriteExecute", "SystemCallFilter", "PrivateIPC", "PrivateNetwork"]:
                self.assertNotIn(name, settings(unit), unit)


# Ends with the code that the file `next` holds, which it takes away; without one it lives, with a child in a session of its own, as
# the coordinator's. Asked to stop, it ends with 4.
PROGRAM = """#!/bin/sh
cd {folder}
echo "$$" >>starts
trap 'exit 4' TERM
if [ -e next ]; then code=$(cat next); rm next; exit "$code"; fi
[ -e child ] || {{ setsid sleep 1000 & echo $! >child.new && mv child.new child; }}
echo ready >ready
while :; do sleep 0.05; done
"""


@unittest.skipIf(systemd_manager.why_not(), systemd_manager.why_not())
class RealSystemd(unittest.TestCase):
    def setUp(self):
        self.manager = systemd_manager.Manager()
        self.manager.__enter__()
        self.addCleanup(self.manager.__exit__)
        self.folder = self.manager.folder
        (self.folder / "hedgerow").write_text(PROGRAM.format(folder=self.folder))
        (self.folder / "hedgerow").chmod(0o755)
        (self.folder / "worker.env").write_text("HEDGEROW_RUN=/data/runs/mine\n")
        (self.folder / "data-runs-mine.toml").write_text("")
        for unit in (RUN, WORKER):
            text = (FOLDER / unit).read_text()
            text = text.replace("/opt/hedgerow/bin", str(self.folder)).replace("/etc/hedgerow", str(self.folder))
            # A user's manager cannot change users, and containers do not let it mount over /proc; that the restart waits less is
            # all else that differs.
            text = re.sub(r"^(User|Group|ProtectKernelTunables|ProtectKernelLogs)=.*$", "", text, flags=re.M)
            (self.manager.units / unit).write_text(re.sub(r"^RestartSec=.*$", "RestartSec=100ms", text, flags=re.M))

    def starts(self) -> int:
        path = self.folder / "starts"
        return len(path.read_text().split()) if path.exists() else 0

    def start(self, unit: str) -> None:
        self.manager.control("start", unit)
        self.manager.until((self.folder / "ready").exists, "start")

    def after_exit(self, unit: str, code: int) -> tuple[str, int]:
        """(what the unit's end counts as, how often it was started) when the program ends so at its first start."""
        (self.folder / "next").write_text(str(code))
        self.manager.control("start", "--no-block", unit)
        state = lambda: self.manager.property(unit, "ActiveState")
        ended = lambda: (self.starts() > 0 and state() in ("inactive", "failed")) or (self.folder / "ready").exists()
        self.manager.until(ended, "end or second start")
        found = (state(), self.starts())
        self.manager.control("stop", unit)
        for name in ("starts", "ready"):
            (self.folder / name).unlink(missing_ok=True)
        self.manager.control("reset-failed")
        return found

    def test_the_coordinator_is_started_again_where_that_helps_and_not_elsewhere(self):
        unit = "hedgerow-run@data-runs-mine.service"
        self.assertEqual({code: self.after_exit(unit, code) for code in range(6)},
                         {0: ("inactive", 1), 1: ("active", 2), 2: ("failed", 1), 3: ("failed", 1), 4: ("inactive", 1), 5: ("active", 2)})

    def test_a_worker_that_was_sent_away_comes_again_and_one_that_is_done_does_not(self):
        unit = "hedgerow-worker@0.service"
        self.assertEqual({code: self.after_exit(unit, code) for code in range(6)},
                         {0: ("inactive", 1), 1: ("active", 2), 2: ("failed", 1), 3: ("failed", 1), 4: ("active", 2), 5: ("active", 2)})

    def test_a_killed_coordinators_children_live_until_the_next_one_has_them(self):
        unit = "hedgerow-run@data-runs-mine.service"
        self.start(unit)
        child = int((self.folder / "child").read_text())
        first = self.manager.property(unit, "MainPID")
        (self.folder / "ready").unlink()
        os.kill(int(first), signal.SIGKILL)
        self.manager.until((self.folder / "ready").exists, "second start")
        self.assertNotEqual(self.manager.property(unit, "MainPID"), first)
        os.kill(child, 0)  # raises if it is gone

    def test_stop_asks_the_coordinator_alone_and_is_no_failure(self):
        unit = "hedgerow-run@data-runs-mine.service"
        self.start(unit)
        child = int((self.folder / "child").read_text())
        self.manager.control("stop", unit)
        self.assertEqual((self.manager.property(unit, "ActiveState"), self.manager.property(unit, "ExecMainStatus")), ("inactive", "4"))
        self.assertEqual(self.starts(), 1)
        os.kill(child, 0)


if __name__ == "__main__":
    unittest.main()
