"""An evaluation that six workers share, by the real programs: cut by sequences, with the figures of one worker, bit for bit.

Catches: pieces that no run makes, a sequence that no piece or two of them evaluate, sums whose order depends on who ended first.
"""

from __future__ import annotations

import re
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

SUBJECTS = ("teacher", "transfer", "lora")
OF_THE_WORK = ("seconds", "tokens_per_second", "peak_memory")


class EvaluatePieces(unittest.TestCase):
    def results(self, workers: int) -> tuple[dict, list[str]]:
        """The result of each subject, and the tasks of evaluations that are done."""
        one = job.Job()
        self.addCleanup(one.close)
        recipe = one.recipe.read_text()
        recipe = re.sub(r"(\[data\.evaluate\]\n(?:.+\n)*?validation_sequences = )\d+", r"\g<1>14", recipe)
        recipe = re.sub(r"(?m)^local = .*", f"local = {workers}", recipe)
        self.assertIn("= 14", recipe)
        one.recipe.write_text(recipe)
        one.run()
        tasks = {task["id"]: task for task in one.status()["tasks"] if task["id"].startswith("evaluate/")}
        found = {subject: tasks[f"evaluate/{subject}"]["result"] for subject in SUBJECTS}
        for result in found.values():
            self.assertGreater(result["seconds"], 0.0)
            for name in OF_THE_WORK:
                result.pop(name, None)
        return found, sorted(id for id, task in tasks.items() if task["state"] == "done")

    def test_six_workers_share_each_evaluation_and_find_what_one_finds(self) -> None:
        alone, tasks = self.results(1)
        self.assertEqual(tasks, [f"evaluate/{subject}" for subject in sorted(SUBJECTS)])
        shared, tasks = self.results(6)
        for subject in SUBJECTS:
            self.assertIn(f"evaluate/{subject}/p01", tasks)
            self.assertEqual(shared[subject], alone[subject], subject)


if __name__ == "__main__":
    unittest.main()
