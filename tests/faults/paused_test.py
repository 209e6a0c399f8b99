"""Processes that stop, hang or go while the others go on, on a real run: its bytes are those of an undisturbed one.

Catches: a late result that is taken although its lease is another's; a coordinator that woke up and writes on; a task that kills
its workers for ever; a hang that nobody sees because heartbeats come; workers that lose steps to a coordinator's restart.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
import job  # noqa: E402
from disturbed import PARTIAL, Disturbed, expected, go_on, release_only, report  # noqa: E402

LEASE_S = 4
ORPHAN_S = 3
HANG_S = 6
RESTART_LIMIT_S = 5


class Workers(unittest.TestCase):
    def stopped_past_its_lease(self, fault: str, task: str) -> None:
        """A worker stops itself at `fault`, wakes up when its task is done by another, and says what it has to say."""
        run = Disturbed(self, lease_s=LEASE_S)
        with run.going(fault, "stop") as process:
            pid, = run.until(process, run.stopped)
            begun = time.monotonic()
            revoked, = run.until(process, lambda: run.events(task, "revoked"))
            self.assertTrue(revoked["expired"], revoked)
            seconds = time.monotonic() - begun
            run.until(process, lambda: [event for event in run.events(task, "done") if event["token"] > revoked["token"]])
            go_on([pid])
            run.ends_with_the_same_bytes(process)
        stale = [event["type"] for event in run.journal() if event.get("token") == revoked["token"]]
        self.assertEqual(stale[stale.index("revoked"):], ["revoked"], "something came of a lease that was over")
        report("paused worker", place=fault, lease_s=LEASE_S, seconds_to_revocation=round(seconds, 2))

    def test_a_result_that_is_said_after_the_lease_is_fenced(self) -> None:
        self.stopped_past_its_lease("worker.artifact.written@1:1", "transfer/b0001")

    @release_only
    def test_a_shard_that_is_said_after_the_lease_is_fenced(self) -> None:
        self.stopped_past_its_lease("worker.capture.shard_written@0:2", "capture/b0000")

    @release_only
    def test_a_training_that_goes_on_after_the_lease_is_dropped(self) -> None:
        self.stopped_past_its_lease("worker.transfer.step@1:5", "transfer/b0001")

    def test_one_that_hangs_while_its_heart_beats_is_killed_and_its_task_goes_to_another(self) -> None:
        run = Disturbed(self, lease_s=LEASE_S, hang_timeout_s=HANG_S)
        begun = time.monotonic()
        with run.going("worker.transfer.step@1:3", "hang") as process:
            failed, = run.until(process, lambda: run.events("transfer/b0001", "failed"))
            seconds = time.monotonic() - begun
            run.ends_with_the_same_bytes(process)
        self.assertIn("hung: no progress for", failed["message"])
        self.assertIn("hung: no progress for", run.said(), "shown while it runs")
        shown = run.command("explain", "--block", "1", "--run", run.run_directory)
        self.assertIn("no progress for", shown.out, str(shown))
        self.assertEqual(run.events("transfer/b0001", "revoked"), [], "its lease was kept by heartbeats all the time")
        report("hung worker", hang_timeout_s=HANG_S, seconds_from_start=round(seconds, 2))

    def test_a_task_that_kills_its_workers_is_quarantined_and_the_rest_finishes(self) -> None:
        run = Disturbed(self)
        with run.going("worker.transfer.step@1:1", "kill", always=True) as process:
            run.ends(process, PARTIAL)
        failed = run.events("transfer/b0001", "failed")
        holders = {event["token"]: event["worker"] for event in run.events("transfer/b0001", "granted")}
        self.assertGreaterEqual(len(failed), 3)
        self.assertGreaterEqual(len({holders[event["token"]] for event in failed}), 2)
        self.assertEqual(len(run.events("transfer/b0001", "quarantined")), 1)
        self.assertEqual(len(run.events("transfer/b0000", "done")), 1)
        self.assertEqual(len(run.events("evaluate/teacher", "done")), 1)
        self.assertEqual(run.status()["state"], "partial")
        run.resumes_with_the_same_bytes()
        report("poison task", deaths=len(failed), workers=len(set(holders.values())), exit_code=PARTIAL)


class Coordinators(unittest.TestCase):
    def test_killed_while_workers_train_costs_no_step(self) -> None:
        run = Disturbed(self)
        with run.going("coordinator.checkpoint.transfer:2", "kill") as process:
            self.assertEqual(process.wait(60), -signal.SIGKILL, run.said())
        workers = run.named("hedgerow-worker", "serve")
        self.assertTrue(workers, "the workers live on")
        with run.going() as process:
            run.ends_with_the_same_bytes(process)
        second = [event for event in run.journal() if event["segment"] == 2]
        answers = [event for event in second if event["type"] in ("granted", "shard_committed", "checkpointed", "done")]
        seconds = answers[0]["at"] - second[0]["at"]
        transfers = run.events("transfer", "granted", "released", "revoked", "failed")
        self.assertEqual([event["type"] for event in transfers], ["granted", "granted"], "each transfer in one go")
        self.assertLess(seconds, RESTART_LIMIT_S)
        report("coordinator restart", workers=len(workers), steps_lost=0, seconds_to_dispatch=round(seconds, 3),
               limit_s=RESTART_LIMIT_S)

    def test_stopped_longer_than_its_workers_wait_takes_up_where_they_left(self) -> None:
        run = Disturbed(self, orphan_timeout_s=ORPHAN_S)
        with run.going("coordinator.checkpoint.transfer:2", "stop") as process:
            run.until(process, run.stopped)
            run.until(process, lambda: not run.named("hedgerow-worker", "serve"))
            go_on([process.pid])
            run.ends_with_the_same_bytes(process)
        self.assertEqual(run.events("transfer", "failed"), [], "workers that left in order are no failure")

    @release_only
    def test_one_that_wakes_up_after_another_host_took_over_stops_without_harm(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("another host's name needs root (unshare --uts)")
        run = Disturbed(self)
        with run.going("coordinator.checkpoint.transfer:2", "stop") as stale:
            run.until(stale, run.stopped)
            with run.going(prefix=["unshare", "--uts", "sh", "-c", 'hostname localhost && exec "$0" "$@"']) as successor:
                run.until(successor, lambda: [event for event in run.journal()
                                              if event["segment"] == 2 and event["type"] in ("checkpointed", "done")])
                before = (run.run_directory / "journal" / "000001.jsonl").stat().st_size
                go_on([stale.pid])
                job.wait_until(lambda: True if stale.poll() is not None else None, None)
                self.assertNotEqual(stale.returncode, 0)
                self.assertIn("took this run over", run.said())
                run.ends_with_the_same_bytes(successor)
        after = (run.run_directory / "journal" / "000001.jsonl").stat().st_size
        report("stale coordinator", exit_code=stale.returncode, bytes_behind_the_seal=after - before)


def setUpModule() -> None:
    expected()


if __name__ == "__main__":
    unittest.main()
