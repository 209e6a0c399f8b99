"""kill -9 of a worker, of the coordinator and of an MPI rank in each stage; the same command again; equal bytes.

Each case dies at a named place of the commit protocol (storage/fault_point.hpp), not at a random moment, so that a kill
is never an idle one. The undisturbed run of the same recipe is made once and compared with.
"""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

# A dead worker is replaced while the command goes on; a dead coordinator ends it, and the same command resumes.
WORKER_DIES = ["worker.capture.shard_written:2", "worker.transfer.step:5", "worker.checkpoint.written:3",
               "worker.artifact.written:1"]
COORDINATOR_DIES = ["coordinator.shard.renamed:2", "coordinator.output.renamed:1", "coordinator.student.written:1",
                    "coordinator.student.renamed:1", "coordinator.checkpoint.transfer:2", "coordinator.finetune.launched:1",
                    "coordinator.checkpoint.finetune:2", "storage.journal.written:20"]
RANK_DIES = ["worker.finetune.stepped:2", "worker.finetune.checkpoint.written:2", "worker.finetune.adapter.written:1"]


class KillAndResume(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        undisturbed = job.Job()
        try:
            ended = undisturbed.run()
            if ended.code != 0:
                raise AssertionError(f"the undisturbed run failed: {ended}")
            cls.expected = undisturbed.artifacts()
        finally:
            undisturbed.close()

    def check(self, fault: str, expected_codes: set[int]) -> None:
        disturbed = job.Job()
        self.addCleanup(disturbed.close)
        first = disturbed.run(fault=fault)
        self.assertTrue(disturbed.fault_was_hit(fault), f"{fault}: nobody came by that place\n{first}")
        self.assertIn(first.code, expected_codes, f"{fault}: {first}")
        second = disturbed.run()
        self.assertEqual(second.code, 0, f"resume after {fault}: {second}")
        self.assertEqual(disturbed.artifacts(), self.expected, f"other bytes after a kill at {fault}")

    def test_a_killed_worker_costs_nothing_but_time(self) -> None:
        for fault in WORKER_DIES:
            with self.subTest(fault):
                self.check(fault, {0})

    def test_a_killed_coordinator_is_resumed_by_the_same_command(self) -> None:
        for fault in COORDINATOR_DIES:
            with self.subTest(fault):
                self.check(fault, {-9})

    def test_a_killed_mpi_rank_is_relaunched_from_the_last_checkpoint(self) -> None:
        for fault in RANK_DIES:
            with self.subTest(fault):
                self.check(fault, {0})


if __name__ == "__main__":
    unittest.main()
