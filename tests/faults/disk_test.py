"""What a disk does to a real run: it fills up, a quota ends, a write fails, a cleaner of scratch space deletes what it finds.

Catches: a run that ends without saying what is missing; a committed file that a full disk damaged; a task that is given up for
files that somebody deleted under it; other bytes after any of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
import job  # noqa: E402
from disturbed import Disturbed, expected, go_on, release_only, report  # noqa: E402

ENVIRONMENT = 5
TMPFS_MIB = 512


class Full(unittest.TestCase):
    def fill_up(self, left_kib: int) -> None:
        """A tmpfs that somebody else fills while a worker is between two shards."""
        run = Disturbed(self)
        run.run_directory.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={TMPFS_MIB}m", "hedgerow-full", run.run_directory],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest(f"tmpfs cannot be mounted here: {mounted.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "--lazy", run.run_directory], check=False)
        filler = run.run_directory / "somebody-elses"
        with run.going("worker.capture.shard_written@0:1", "stop", always=True) as process:
            stopped = run.until(process, lambda: both if len(both := run.stopped()) == 2 else None)  # nobody writes now
            with filler.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, free_bytes(run.run_directory) - left_kib * 1024)
            go_on(stopped)
            run.ends(process, ENVIRONMENT)
        said = run.said()
        self.assertRegex(said, r"[Nn]o space left|free in")
        self.assertEqual(said.count("run the same command again"), 1, f"the advice is given once: {said}")
        status = json.loads(run.command("status", "--run", run.run_directory, "--json").out)
        self.assertEqual([task["id"] for task in status["tasks"] if task["state"] == "running"], [])
        self.assertEqual((status["state"], status["warnings"]), ("stopped", []), "nobody was left behind")
        free = re.search(r"(\d+) MiB are free in", said)
        filler.unlink()
        checked = run.command("check", "--run", run.run_directory)
        self.assertEqual(checked.code, 0, f"committed files must be sound: {checked}")
        run.resumes_with_the_same_bytes()
        report("full disk", left_kib=left_kib, exit_code=ENVIRONMENT, says_free_mib=int(free.group(1)) if free else None,
               committed_files="sound")

    def test_a_disk_that_fills_up_during_capture_ends_the_run_and_damages_nothing(self) -> None:
        self.fill_up(left_kib=128)

    @release_only
    def test_a_disk_that_is_full_to_the_last_byte_ends_the_run_and_damages_nothing(self) -> None:
        self.fill_up(left_kib=0)


class Failing(unittest.TestCase):
    """System calls of running processes, failed by strace."""

    def setUp(self) -> None:
        if shutil.which("strace") is None:
            self.skipTest("strace is not installed")
        probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True)
        if probe.returncode != 0:
            self.skipTest(f"strace may not trace here: {probe.stderr.strip()}")

    def inject(self, run: Disturbed, pid: int, call: str, error: str) -> None:
        """The next such call of each of its threads, and of what it starts later, fails."""
        log = run.root / f"strace.{call}.{error}"
        tracer = subprocess.Popen(["strace", "-f", "-qq", "-o", log, "-e", f"trace={call}", "-e",
                                   f"inject={call}:error={error}:when=1", "-p", str(pid)], stderr=subprocess.DEVNULL)
        self.addCleanup(tracer.wait)
        self.addCleanup(tracer.kill)
        job.wait_until(lambda: True if tracer_of(pid) == tracer.pid else None, tracer)

    def test_quota_and_input_output_errors_of_workers_are_tried_again(self) -> None:
        run = Disturbed(self)
        with run.going("worker.capture.shard_written@0:1", "stop", always=True) as process:
            both = run.until(process, lambda: both if len(both := run.stopped()) == 2 else None)
            self.inject(run, both[0], "fallocate", "EDQUOT")
            self.inject(run, both[1], "fsync", "EIO")
            go_on(both)
            run.ends_with_the_same_bytes(process)
        failed = {event["kind"]: event["message"] for event in run.journal() if event["type"] == "failed"}
        self.assertIn("quota", failed.get("exhausted", "").lower(), failed)
        self.assertIn("Input/output error", failed.get("unavailable", ""), failed)
        report("failing disk of workers", failures={kind: text[:120] for kind, text in failed.items()})

    @release_only
    def test_an_input_output_error_of_the_journal_ends_the_coordinator_and_nothing_is_lost(self) -> None:
        run = Disturbed(self)
        with run.going("storage.journal.written:8", "stop") as process:
            run.until(process, lambda: process.pid in run.stopped())
            self.inject(run, process.pid, "fsync", "EIO")  # the journal's own is next
            go_on([process.pid])
            run.ends(process, ENVIRONMENT)
        self.assertIn("Input/output error", run.said())
        run.resumes_with_the_same_bytes()
        report("failing disk of the journal", exit_code=ENVIRONMENT)


class Purged(unittest.TestCase):
    def test_scratch_that_is_deleted_while_a_run_goes_on_and_between_two_is_made_again(self) -> None:
        run = Disturbed(self, file_patience_s=1)
        with run.going("worker.capture.shard_written@0:2", "stop") as process:
            stopped = run.until(process, run.stopped)
            run.until(process, lambda: len(run.events("capture/b0000", "shard_committed")) >= 3)
            during = run.purge("hidden/b0001")
            go_on(stopped)
            run.until(process, lambda: run.events("transfer/b0001", "checkpointed"))
            run.kill_all(process)
        self.assertGreaterEqual(during, 3)
        self.assertEqual(run.events("transfer/b0001", "failed", "quarantined"), [], "no fault of the task")
        between = run.purge("hidden/b0001", "attempts/*/checkpoint*")
        run.resumes_with_the_same_bytes()
        lost = [event["name"] for event in run.journal() if event["type"] == "lost"]
        self.assertGreaterEqual(len(lost), during)
        report("scratch purge", deleted_while_running=during, deleted_between=between, lost=len(lost))

    def test_a_student_that_rots_before_it_is_evaluated_is_assembled_again(self) -> None:
        run = Disturbed(self)
        with run.going("coordinator.student.renamed:1", "stop") as process:
            run.until(process, run.stopped)
            maps, = run.run_directory.glob("student/*/feature_maps.safetensors")
            rotten = bytearray(maps.read_bytes())
            rotten[-100] ^= 1
            maps.write_bytes(rotten)
            go_on([process.pid])
            run.ends_with_the_same_bytes(process)
        lost = [event["name"] for event in run.journal() if event["type"] == "lost"]
        self.assertEqual(lost, [str(maps.relative_to(run.run_directory))])
        newest, = (path for path in run.run_directory.glob("student/*/feature_maps.safetensors") if path != maps)
        newest.write_bytes(rotten)
        for command in (["export", "--out", run.root / "exported"], ["generate", "--prompt", "hello"]):
            ended = run.command(*command, "--run", run.run_directory)
            self.assertNotEqual(ended.code, 0, str(ended))
            self.assertIn("check --repair", ended.err, str(ended))


def free_bytes(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def tracer_of(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("TracerPid:"):
            return int(line.split()[1])
    return 0


def setUpModule() -> None:
    expected()


if __name__ == "__main__":
    unittest.main()
