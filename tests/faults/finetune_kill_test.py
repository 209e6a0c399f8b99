"""Kills a finetune whose validations decide its rate, its end and its adapter, at the places where that state lies on disk
or only in memory: it ends as an undisturbed one does, with the same bytes and the same result."""

import json
import os
import shutil
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

RECIPE = {
    "transfer.max_steps": 2,
    "data.finetune.max_sequences": 12,
    "finetune.learning_rate": 0.012,  # at which the validation loss goes up and down
    "finetune.max_steps": 40,
    "finetune.checkpoint_every": 3,
    "finetune.validate_every": 2,
    "finetune.schedule": "plateau",
    "finetune.warmup_steps": 2,
    "finetune.plateau_patience": 0,
    "finetune.plateau_factor": 0.5,
    "finetune.early_stop_patience": 2,
    "finetune.threads": 1,
}
PLACES = ["worker.finetune.validating:4", "coordinator.checkpoint.finetune:2"]
if os.environ.get("HEDGEROW_TEST_RELEASE"):
    PLACES += ["worker.finetune.stepped:6", "worker.finetune.checkpoint.written:2", "worker.finetune.adapter.written:1"]
RESULT = ("best_step", "steps", "stopped_early", "validation_loss", "last_validation_loss", "tokens", "loss")


class KilledFinetune(unittest.TestCase):
    def test_a_kill_at_any_place_leaves_the_best_adapter_and_result_of_an_undisturbed_run(self) -> None:
        made = job.Job(RECIPE)
        self.addCleanup(made.close)
        ended = made.command("run", "--run", made.run_directory, "--recipe", made.recipe, "--stop-before", "finetune")
        self.assertEqual(ended.code, 0, ended)

        def finetuned(name: str, fault: str = "") -> tuple[dict, dict[str, str]]:
            run = made.root / name
            shutil.copytree(made.run_directory, run)
            words = ("run", "--run", run)
            ended = made.command(*words, fault=fault)
            if fault:
                self.assertTrue(made.fault_was_hit(fault), f"{fault}: nobody came by\n{ended}")
            if fault.startswith("coordinator"):
                self.assertEqual(ended.code, -9, ended)
                ended = made.command(*words)
            self.assertEqual(ended.code, 0, f"{fault}: {ended}")
            status = made.command("status", "--run", run, "--json")
            task = next(task for task in json.loads(status.out)["tasks"] if task["stage"] == "finetune")
            return {key: task["result"].get(key) for key in RESULT}, job.artifacts_of(run)

        expected, artifacts = finetuned("undisturbed")
        self.assertTrue(0 < expected["best_step"] < expected["steps"], f"the rules had nothing to decide: {expected}")
        self.assertTrue(expected["stopped_early"], expected)
        for place in PLACES:
            with self.subTest(place):
                self.assertEqual(finetuned(place.replace(":", "-"), place), (expected, artifacts))


if __name__ == "__main__":
    unittest.main()
