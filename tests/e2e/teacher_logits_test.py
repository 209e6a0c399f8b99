"""A job whose finetune learns from the teacher's logits, from the text of its transfer: what it leaves, checks and deletes."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

CHANGES = {
    "data.finetune.seq_len": 128,  # as data.transfer's: the logits are computed from the last boundary
    "data.finetune.max_sequences": 36,
    "finetune.objective": "mixed",
    "finetune.top_k": 32,
    "finetune.validate_every": 2,
}


class TeacherLogits(unittest.TestCase):
    def run_with(self, keep_boundaries: str) -> job.Job:
        made = job.Job({**CHANGES, "plan.keep_boundaries": keep_boundaries})
        self.addCleanup(made.close)
        ended = made.run()
        self.assertEqual(ended.code, 0, ended)
        return made

    def files(self, made: job.Job) -> list[Path]:
        return sorted(made.run_directory.glob("logits/*.h5"))

    def check(self, made: job.Job) -> None:
        checked = made.command("check", "--run", made.run_directory)
        self.assertEqual(checked.code, 0, checked)
        again = made.run()
        self.assertEqual(again.code, 0, again)

    def test_they_go_with_the_boundaries_when_nothing_is_kept(self) -> None:
        made = self.run_with("none")
        self.assertEqual(self.files(made), [])
        self.check(made)

    def test_a_worker_that_is_killed_while_it_makes_them_changes_no_byte(self) -> None:
        expected = self.run_with("none").artifacts()
        for place in ("worker.logits.file:1", "worker.logits.written:1"):
            with self.subTest(place):
                killed = job.Job({**CHANGES, "plan.keep_boundaries": "none"})
                self.addCleanup(killed.close)
                ended = killed.command("run", "--run", killed.run_directory, "--recipe", killed.recipe, fault=place)
                self.assertEqual(ended.code, 0, ended)
                self.assertTrue(killed.fault_was_hit(place), "nobody came by")
                self.assertEqual(killed.artifacts(), expected)

    def test_kept_they_are_checked_by_their_bytes_and_cleaned_when_finetune_is_done(self) -> None:
        made = self.run_with("all")
        result = {task["id"]: task for task in made.status()["tasks"]}["finetune"]["result"]
        self.assertGreater(result["validation_kl"], 0.0)
        self.check(made)
        damaged = self.files(made)[0]
        content = damaged.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 4
        damaged.write_bytes(flipped)
        found = made.command("check", "--run", made.run_directory)
        self.assertEqual(found.code, 1, found)
        self.assertIn(damaged.name, found.out + found.err)
        damaged.write_bytes(content)
        self.assertEqual(made.command("clean", "--yes", "--run", made.run_directory).code, 0)
        self.assertEqual(self.files(made), [])
        self.check(made)


if __name__ == "__main__":
    unittest.main()
