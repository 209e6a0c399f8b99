"""`hedgerow bench kernels` through the real processes, at lengths that take a moment.

Catches: a sweep that the two programs read differently, rows that tests/bench/plot_kernels cannot draw, an interrupt that
loses the rows before it.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

PLOT = Path(__file__).resolve().parents[1] / "bench" / "plot_kernels"
TINY = ("--lengths", "16,80", "--heads", "4:2", "--head-dim", "16", "--features", "16", "--window", "16", "--batch-tokens", "80",
        "--repeats", "1", "--device", "cpu", "--threads", "1")


def command(*words: str) -> list[str]:
    return [str(job.binary_directory() / "hedgerow"), "bench", "kernels", *words]


class BenchKernels(unittest.TestCase):
    def test_a_tiny_sweep_measures_every_combination_and_draws_it(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            ended = subprocess.run(command(*TINY, "--json", "--map", "hedgehog_softmax,taylor"),
                                   capture_output=True, text=True, timeout=100)
            self.assertEqual(ended.returncode, 0, ended)
            lines = [json.loads(line) for line in ended.stdout.splitlines()]
            self.assertEqual(lines[0]["event"], "device")
            for rate in ("copy_gb_per_s", "bf16_tflop_per_s", "fp32_tflop_per_s"):
                self.assertGreater(lines[0][rate], 0)
            rows = [line for line in lines if line["event"] == "measured"]
            found = {(row["direction"], row["layout"], row["map"], row["length"]) for row in rows}
            expected = {(direction, layout, feature_map, length) for direction in ("forward", "backward", "decode")
                        for layout in ("terraced", "sliding") for feature_map in ("hedgehog_softmax", "taylor")
                        for length in (16, 80)}
            self.assertEqual(found, expected)
            self.assertEqual(len(rows), len(expected))
            for row in rows:
                self.assertAlmostEqual(row["ratio"], row["ms"] / row["softmax"]["ms"], places=6)
                self.assertIn(row["softmax"]["name"].split(",")[0], ("flash", "math"))
            self.assertTrue(lines[-1]["is_complete"])
            if importlib.util.find_spec("matplotlib") is None:
                self.skipTest("no matplotlib to draw the rows with; deploy/setup --tests installs it")
            plot = Path(directory) / "plot.svg"
            drawn = subprocess.run([sys.executable, str(PLOT), str(plot)], input=ended.stdout, capture_output=True, text=True,
                                   timeout=100)
            self.assertEqual(drawn.returncode, 0, drawn)
            self.assertEqual(drawn.stdout.count(": "), len(expected) // 2)
            ElementTree.parse(plot)

    def test_interrupted_it_shows_what_was_measured_and_says_so_by_its_exit_code(self) -> None:
        endless = ("--lengths", ",".join(str(16 * n) for n in range(1, 200)), *TINY[2:])
        running = subprocess.Popen(command(*endless, "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            while json.loads(running.stdout.readline())["event"] != "measured":
                pass
            running.send_signal(signal.SIGINT)
            out, err = running.communicate(timeout=60)
        finally:
            running.kill()
        self.assertEqual(running.returncode, 4, err)
        last = json.loads(out.splitlines()[-1])
        self.assertEqual(last["event"], "end")
        self.assertFalse(last["is_complete"])


if __name__ == "__main__":
    unittest.main()
