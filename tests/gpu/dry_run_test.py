"""tests/gpu/measure on a machine without a GPU: what a card's ten minutes must not find out."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

HERE = Path(__file__).resolve().parent


class DryRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="hedgerow-gpu-dry-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = Path(temporary.name)
        made = subprocess.run([HERE / "bundle", "--as-built", "--build", job.binary_directory().parent, "--out", cls.root / "bundle"],
                              capture_output=True, text=True)
        if made.returncode != 0:
            raise AssertionError(f"tests/gpu/bundle: {made.stderr}{made.stdout}")
        cls.ended = cls.measure("all", "--minutes", "8")

    @classmethod
    def measure(cls, name: str, *words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, HERE / "measure", "--dry-run", "--bundle", cls.root / "bundle", "--out", cls.root / name,
                               *words], capture_output=True, text=True, timeout=600)

    def result(self, name: str) -> dict:
        return json.loads((self.root / name / "gpu.json").read_text())

    def test_every_step_passes_or_says_why_it_was_skipped(self) -> None:
        self.assertEqual(self.ended.returncode, 0, self.ended.stdout + self.ended.stderr)
        steps = self.result("all")["steps"]
        for step in steps:
            with self.subTest(step=step["step"]):
                self.assertIn(step["state"], ("passed", "skipped"), step["reason"])
                self.assertGreater(step["limit_s"], 0)
                self.assertTrue(step["figures"] if step["state"] == "passed" else step["reason"])
        passed = {step["step"] for step in steps if step["state"] == "passed"}
        self.assertLessEqual({"probe", "job, head_dim 128", "job, head_dim 64", "layer times", "attention, training and forward",
                              "LoRA step, 8B width, 2 layers", "decode, 8B width, 2 layers"}, passed)

    def test_the_job_gives_equal_bytes_again_and_with_another_number_of_layers_a_block(self) -> None:
        figures = {step["step"]: step["figures"] for step in self.result("all")["steps"]}["job, head_dim 128"]
        self.assertEqual((figures["state"], figures["bytes, again"], figures["bytes, two workers, k = 2"]), ("done", "equal", "equal"))
        self.assertEqual((figures["bytes, a worker killed in transfer"], figures["bytes, a rank killed in LoRA"]), ("equal", "equal"))

    def test_the_table_has_a_row_for_each_step_with_its_limit(self) -> None:
        table = (self.root / "all" / "gpu.md").read_text()
        for step in self.result("all")["steps"]:
            self.assertRegex(table, rf"\| {step['step']} \| {step['state']} \| \d+ of {step['limit_s']} \|".replace(".", "[.]"))

    def test_a_step_that_time_ran_out_for_is_named_and_what_was_found_is_kept(self) -> None:
        ended = self.measure("short", "--minutes", "0.1")
        self.assertIn(ended.returncode, (0, 1), ended.stderr)
        states = [step["state"] for step in self.result("short")["steps"]]
        self.assertEqual(states[-1], "not reached")
        self.assertEqual(self.result("short")["steps"][-1]["reason"], "no time was left")

    def test_a_folder_without_a_bundle_and_an_unknown_step_are_refused(self) -> None:
        unknown = self.measure("none", "--only", "nonsense")
        self.assertEqual(unknown.returncode, 2, unknown.stderr)
        self.assertIn("no such step", unknown.stderr)
        absent = subprocess.run([sys.executable, HERE / "measure", "--bundle", self.root / "nowhere"], capture_output=True, text=True)
        self.assertEqual(absent.returncode, 5)
        self.assertIn("tests/gpu/bundle", absent.stderr)


if __name__ == "__main__":
    unittest.main()
