"""`hedgerow doctor --calibrate` through the real processes, on a file that the plan then reads.

Catches: figures that the two programs read differently, a plan that does not take them, a cluster file that is lost over
a mistake in the command.
"""

from __future__ import annotations

import json
import os
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

FIGURES = ("product_tflops", "other_tflops", "disk_gb_s", "worker_start_s", "memory_gb", "cores")


class Calibrate(unittest.TestCase):
    def setUp(self) -> None:
        self.job = job.Job()
        self.addCleanup(self.job.close)
        self.cluster = self.job.root / "cluster.toml"

    def calibrate(self, *words: str | Path) -> job.Ended:
        return self.job.command("doctor", "--calibrate", self.cluster, "--dir", self.job.root, *words)

    def test_a_plan_by_the_file_that_it_made_rests_on_measured_figures(self) -> None:
        ended = self.calibrate("--recipe", self.job.recipe, "--json")
        self.assertEqual(ended.code, 0, ended)
        found = json.loads(ended.out)
        for figure in FIGURES:
            self.assertGreater(found[figure], 0.0, figure)
        self.assertEqual(found["cores"], len(os.sched_getaffinity(0)))
        self.assertLess(found["seconds"]["products"], found["seconds"]["transfer"])
        self.assertEqual(found["layer"]["seq_len"], 128)
        self.assertEqual(list(self.job.root.glob(".hedgerow-calibrate*")), [])
        planned = self.job.command("plan", "--recipe", self.job.recipe, "--cluster", self.cluster)
        self.assertEqual(planned.code, 0, planned)
        self.assertIn("(measured 20", planned.out)
        self.assertNotIn("assumed, not measured", planned.out)

    def test_figures_of_a_file_that_has_its_nodes_go_beside_it_and_the_plan_takes_them(self) -> None:
        text = '# ours\nnodes = [{ name = "a", memory_gb = 4 }]\n'
        self.cluster.write_text(text)
        ended = self.calibrate("--json")
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(json.loads(ended.out)["file"], str(self.cluster.with_suffix(".measured.toml")))
        self.assertEqual(self.cluster.read_text(), text)
        planned = self.job.command("plan", "--recipe", self.job.recipe, "--cluster", self.cluster)
        self.assertIn("(measured 20", planned.out)

    def test_what_is_wrong_with_the_command_is_said_at_once_and_the_file_is_as_it_was(self) -> None:
        two = '[[nodes]]\nname = "left"\nmemory_gb = 4\n[[nodes]]\nname = "right"\nmemory_gb = 4\n'
        cases = (
            ("[[nodes]\n", (), "cluster.toml:1"),
            ("[[nodes]]\nname = \"a\"\n", (), "memory_gb is missing"),
            (two, (), "say which with --node NAME"),
            (two, ("--node", "rigth"), "did you mean 'right'?"),
            ('[[ nodes ]]\nname = "a"\nmemory_gb = 4\n', ("--recipe", "nowhere.toml"), "nowhere.toml"),
            (two, ("--peers", "2"), "--peers"),
        )
        for text, words, expected in cases:
            with self.subTest(expected):
                self.cluster.write_text(text)
                ended = self.calibrate(*words)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(expected, ended.err)
                self.assertEqual(self.cluster.read_text(), text)
        self.cluster = self.job.root / "no-such-folder" / "cluster.toml"
        ended = self.calibrate()
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("there is no folder", ended.err)
        self.assertEqual(self.job.command("doctor", "--node", "a").code, 2)


if __name__ == "__main__":
    unittest.main()
