"""Reads an event file of write_tensorboard with TensorBoard's own reader."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tempfile
import unittest

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as reason:
    raise unittest.SkipTest(f"needs tensorboard: {reason}")


class TensorBoardTest(unittest.TestCase):
    def test_tensorboard_reads_every_tag_step_time_and_value(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run(
                [pathlib.Path(os.environ["HEDGEROW_BIN"], "storage_test"),
                 "--gtest_filter=TensorBoard.WritesItsFileWhereItIsTold"],
                env={**os.environ, "HEDGEROW_TEST_TENSORBOARD": directory}, check=True, stdout=subprocess.DEVNULL)
            events = EventAccumulator(directory)
            events.Reload()
            scalars = {tag: [(event.wall_time, event.step, event.value) for event in events.Scalars(tag)]
                       for tag in events.Tags()["scalars"]}
        self.assertEqual(scalars, {
            "finetune/loss": [(1700000000.25, 1, 2.5), (1700000004.0, 3, 1.5)],
            "layer/12/mse": [(1700000001.5, 0, 4.0), (1700000002.5, 300, 0.25)],
            "layer/12/window_share": [(1700000002.5, 300, 0.75)],
        })


if __name__ == "__main__":
    unittest.main()
