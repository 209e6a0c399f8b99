"""Kills ranks, mpirun and the coordinator of a LoRA stage over a mesh of 2 pipelines of 2 stages, again and again, and goes on
as 1 pipeline of 3 stages: the adapter has the bytes of one rank that nobody disturbed.

Catches: a checkpoint whose parts are of different steps, one that another mesh cannot read, a rank that waits for ever for a
stage that is gone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402
from disturbed import RELEASE, report  # noqa: E402

KILLS = 60 if RELEASE else 6
RECIPE = {
    "transfer.max_steps": 2,
    "data.finetune.max_sequences": 24,
    "finetune.trainable": ["lora", "maps", "window_factors", "norms"],
    "finetune.max_steps": 200 if RELEASE else 60,
    "finetune.checkpoint_every": 3,
    "finetune.validate_every": 4,
    "finetune.threads": 1,
}
MESH = {"finetune.ranks": 4, "finetune.mesh": "2x2"}
QUARANTINED = 3


class KilledMesh(unittest.TestCase):
    def setUp(self) -> None:
        self.job = job.Job({**RECIPE, **MESH})
        self.addCleanup(self.job.close)

    def recipe_of(self, ranks: int, mesh: str) -> Path:
        path = self.job.root / f"{mesh}.toml"
        path.write_text(job.recipe_text({**RECIPE, "finetune.ranks": ranks, "finetune.mesh": mesh}))
        return path

    def finished(self, run: Path, recipe: Path) -> dict[str, str]:
        ended = self.job.command("run", "--run", run, "--recipe", recipe)
        self.assertEqual(ended.code, 0, ended)
        return job.artifacts_of(run)

    def steps(self, run: Path) -> int:
        """Whole steps that the newest attempt has made; its first line is of the step after the one that it resumed from."""
        newest = max(run.glob("attempts/*/metrics.jsonl"), key=lambda path: int(path.parent.name[1:]), default=None)
        lines = newest.read_text().splitlines() if newest else []
        return max((json.loads(line)["step"] for line in lines if '"update_norms"' in line), default=0)

    def test_ranks_and_coordinators_that_are_killed_leave_the_bytes_of_one_rank_in_another_mesh(self) -> None:
        seed = int(os.environ.get("HEDGEROW_STORM_SEED", random.SystemRandom().randrange(1, 10**6)))
        generator = random.Random(seed)
        ended = self.job.command("run", "--run", self.job.run_directory, "--recipe", self.job.recipe, "--stop-before", "finetune")
        self.assertEqual(ended.code, 0, ended)
        alone, stormy = self.job.root / "alone", self.job.root / "stormy"
        for run in (alone, stormy):
            shutil.copytree(self.job.run_directory, run)
        expected = self.finished(alone, self.recipe_of(1, "1x1"))
        status = json.loads(self.job.command("status", "--run", alone, "--json").out)
        result = next(task["result"] for task in status["tasks"] if task["stage"] == "finetune")
        self.assertGreater(result["best_step"], 30, "the adapter is that of a step before the storm")

        killed: dict[str, int] = {}
        process: subprocess.Popen | None = None
        log = (self.job.root / "stderr").open("a")
        self.addCleanup(log.close)
        while sum(killed.values()) < KILLS:
            if process is None or process.poll() is not None:
                if process is not None:  # started again it tries what is quarantined again
                    said = (self.job.root / "stderr").read_text()[-3000:]
                    self.assertIn(process.returncode, (-signal.SIGKILL, QUARANTINED), said)
                process = subprocess.Popen([self.job.bin / "hedgerow", "run", "--run", stormy, "--recipe", self.job.recipe],
                                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
            target = generator.choice(["rank", "rank", "coordinator", "mpirun"])
            before, ahead = self.steps(stormy), generator.randrange(1, 5)

            def victims() -> list[int] | None:
                if process.poll() is not None:
                    return []
                if self.steps(stormy) < before + ahead:
                    return None
                ranks = self.job.named("hedgerow-worker", "finetune")
                found = {"rank": ranks, "coordinator": [process.pid], "mpirun": self.job.named("mpirun")}[target]
                return found or None

            pids = job.wait_until(victims, None, 120)
            if not pids:
                continue
            try:
                os.kill(generator.choice(pids), signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed[target] = killed.get(target, 0) + 1
            if target == "coordinator":
                process.wait()
        reached = self.steps(stormy)
        self.assertLess(reached, RECIPE["finetune.max_steps"], "the stage ended before the storm did")
        process.kill()
        process.wait()
        job.wait_until(lambda: self.job.kill_leftovers() or (True if not self.job.processes() else None), None)
        self.assertEqual(self.finished(stormy, self.recipe_of(3, "1x3")), expected, f"seed {seed}")
        report("mesh kill storm", seed=seed, kills=killed, reached=reached)


if __name__ == "__main__":
    unittest.main()
