"""Kills the coordinator at each write of a run's history, before it and after it: what layers and LoRA measured is there in
the end as in an undisturbed run, once, and no attempt is left open."""

import json
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

MOST_STARTS = 80


def measured(made: job.Job) -> dict[str, list[list]]:
    """Rows by series, without their time."""
    ended = made.command("metrics", "--run", made.run_directory, "--json")
    history = json.loads(ended.out)
    assert all(attempt["ended"] for attempt in history["attempts"]), history["attempts"]
    done = {attempt["task"] for attempt in history["attempts"] if attempt["outcome"] == "done"}
    tasks = {task["id"] for task in made.status()["tasks"]}
    assert done == tasks, (done, tasks)
    # Seconds are no result, and a step that a kill made to be done again took its own.
    skipped = {name: [i for i, column in enumerate(series["columns"]) if column == "seconds"]
               for name, series in history["series"].items()}
    return {name: [[row[0]] + [value for i, value in enumerate(row[2:]) if i not in skipped[name]] for row in series["rows"]]
            for name, series in history["series"].items() if name != "run"}


class KilledHistory(unittest.TestCase):
    def test_a_kill_at_each_write_loses_and_doubles_nothing(self) -> None:
        made = job.Job.finished()
        self.addCleanup(made.close)
        expected = measured(made)
        self.assertEqual([row[0] for row in expected["layer/3"]], [0, 4, 8])
        self.assertEqual([row[0] for row in expected["finetune"]], [1, 2, 3, 4])
        # The first write is at the start: from the second on a term has done something.
        for fault in ("coordinator.history.write:2", "coordinator.history.written:2"):
            with self.subTest(fault):
                killed = job.Job()
                self.addCleanup(killed.close)
                words = ("run", "--run", killed.run_directory, "--recipe", killed.recipe)
                codes = []
                while (not codes or codes[-1] == -9) and len(codes) < MOST_STARTS:
                    codes.append(killed.command(*words, HEDGEROW_FAULT=fault).code)
                self.assertEqual(codes[-1], 0, codes)
                self.assertGreater(len(codes), 3, "nobody was killed")
                self.assertEqual(measured(killed), expected)
                killed.command("clean", "--run", killed.run_directory, "--yes")
                self.assertEqual(measured(killed), expected, "clean keeps the history")


if __name__ == "__main__":
    unittest.main()
