"""The main job on SmolLM2's first four layers: every command a user types, in the order they would."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
import unittest
from pathlib import Path

import h5py

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402


class MainJob(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.job = job.Job(job.MORE_EVALUATION)
        cls.job.remembers_tokens = False
        cls.addClassCleanup(cls.job.close)
        text = job.REPOSITORY / "LICENSE"
        cls.job.recipe.write_text(cls.job.recipe.read_text().replace(
            "[data.evaluate]\n", f'[data.evaluate]\nmax_sequences = 3\ntexts = [{{ name = "license", path = "{text}" }}]\n'))
        cls.plan = cls.job.command("plan", "--recipe", cls.job.recipe, "--json")
        cls.ended = cls.job.run()
        if cls.ended.code != 0:
            raise AssertionError(f"hedgerow run: {cls.ended}")

    def result(self, task: str) -> dict:
        tasks = {entry["id"]: entry for entry in self.job.status()["tasks"]}
        return tasks[task]["result"]

    def test_the_plan_counts_blocks_and_bytes_before_anything_runs(self) -> None:
        self.assertEqual(self.plan.code, 0, self.plan)
        plan = json.loads(self.plan.out)
        self.assertEqual(len(plan["blocks"]), 2)
        self.assertGreater(plan["peak_disk_bytes"], 0)

    def test_every_stage_is_done_and_says_how_good_it_is(self) -> None:
        status = self.job.status()
        self.assertEqual(status["state"], "done")
        teacher, transfer, lora = (self.result(f"evaluate/{name}") for name in ("teacher", "transfer", "lora"))
        # Four layers of thirty predict nothing, so on held-out text the student may be either side of them, but near.
        self.assertLess(abs(math.log(transfer["perplexity"] / teacher["perplexity"])), 0.5)
        self.assertLess(lora["perplexity"], transfer["perplexity"])

    def test_what_each_stage_took_stands_beside_the_plan(self) -> None:
        recorded = json.loads((self.job.run_directory / "plan.json").read_text())
        stages = {stage["stage"]: stage for stage in self.job.status()["stages"]}
        self.assertEqual(set(stages), {stage["stage"] for stage in recorded["stages"]})
        for planned in recorded["stages"]:
            with self.subTest(stage=planned["stage"]):
                stage = stages[planned["stage"]]
                self.assertEqual(stage["planned"], planned)
                self.assertGreater(stage["seconds"], 0.0)
                self.assertGreater(stage["disk_bytes"], 0)
                self.assertLessEqual(stage["disk_bytes"], planned["disk_bytes"])
                self.assertEqual(stage["gpu_hours"], 0.0)
                if planned["memory_bytes"] > 0:
                    self.assertGreater(stage["memory_bytes"], 0)
                    # Of so short sequences a process is most; tests/bench/plan_rows.py holds longer ones to 10 %.
                    self.assertLess(stage["memory_bytes"], 1.2 * planned["memory_bytes"])
        told = self.job.command("status", "--run", self.job.run_directory)
        self.assertRegex(told.out, r"transfer .* elapsed \S+ of \S+ planned  \S+ MB of")
        self.assertRegex(self.job.command("explain", "--run", self.job.run_directory).out, r"stage +time +planned +memory +planned")

    def test_each_text_is_evaluated_and_told_with_its_domain(self) -> None:
        with h5py.File(self.job.run_directory / "tokens" / "evaluate-license.h5") as file:
            self.assertEqual(file["input_ids"].shape, (3, 128))
        for subject, columns in (("teacher", 3), ("transfer", 6), ("lora", 6)):
            result = self.result(f"evaluate/{subject}")
            text = result["texts"]["license"]
            self.assertEqual((result["in_domain"], text["in_domain"]), (True, False))
            self.assertEqual(len(text["columns"]), columns)
            self.assertEqual(text["targets"], 3 * 127)
            self.assertNotEqual(text["perplexity"], result["perplexity"])
        status = self.job.command("status", "--run", self.job.run_directory)
        again = self.job.command("evaluate", "--run", self.job.run_directory)
        for told in (status, again):
            self.assertRegex(told.out, r"validation +in domain")
            self.assertRegex(told.out, r"license +not in domain")
        again = json.loads(self.job.command("evaluate", "--run", self.job.run_directory, "--json").out)
        recorded = self.result("evaluate/lora")
        for found, expected in ((again, recorded), (again["texts"]["license"], recorded["texts"]["license"])):
            self.assertAlmostEqual(found["loss"], expected["loss"], places=3)
            self.assertEqual(found["in_domain"], expected["in_domain"])

    def test_the_tables_of_the_quickstart_have_each_text_beside_its_control(self) -> None:
        status, out = self.job.root / "status.json", self.job.root / "results.json"
        status.write_text(json.dumps(self.job.status()))
        shown = subprocess.run([sys.executable, job.HUGGINGFACE / "show_results.py", "--status", status, "--recipe",
                                self.job.run_directory / "run.toml", "--json", out], capture_output=True, text=True, timeout=60)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertRegex(shown.stdout, r"license +not in domain( +[0-9.e+]+){5}")
        self.assertLessEqual(max(map(len, shown.stdout.splitlines())), 100, shown.stdout)
        lora, recorded = json.loads(out.read_text())["lora"], self.result("evaluate/lora")
        for found, expected in ((lora, recorded), (lora["texts"]["license"], recorded["texts"]["license"])):
            self.assertEqual(found["perplexity"], expected["perplexity"])
            self.assertEqual(found["control"], expected["columns"]["control"]["perplexity"])
            self.assertEqual(found["equal_window"], expected["columns"]["equal_window"]["perplexity"])
            self.assertEqual(found["gap_closed"], expected.get("gap_closed"))
            self.assertEqual(found["kl"], expected["columns"]["student"]["kl"])

    def test_a_second_run_does_nothing_and_takes_seconds(self) -> None:
        began = time.monotonic()
        again = self.job.run()
        self.assertEqual(again.code, 0, again)
        self.assertLess(time.monotonic() - began, 10)

    def test_check_finds_nothing_wrong_and_then_names_a_flipped_bit(self) -> None:
        clean = self.job.command("check", "--run", self.job.run_directory)
        self.assertEqual(clean.code, 0, clean)
        shard = sorted(self.job.run_directory.glob("hidden/*/*.h5"))[0]
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)
        damaged = self.job.command("check", "--run", self.job.run_directory)
        self.assertEqual(damaged.code, 1, damaged)
        self.assertIn(shard.name, damaged.out + damaged.err)
        content[len(content) // 2] ^= 4
        shard.write_bytes(content)

    def test_k_is_a_deployment_choice_and_changes_no_byte(self) -> None:
        expected = self.job.artifacts()["feature maps"]
        for layers_per_block in (1, 3, 4):
            other = job.Job({"plan.layers_per_block": layers_per_block, "finetune.enabled": False, "data.evaluate": None})
            self.addCleanup(other.close)
            ended = other.run()
            self.assertEqual(ended.code, 0, ended)
            maps, = other.run_directory.glob("student/*/feature_maps.safetensors")
            self.assertEqual(job.digest(maps), expected, f"layers_per_block = {layers_per_block}")

    def test_a_changed_recipe_is_refused_naming_the_field(self) -> None:
        changed = self.job.root / "changed.toml"
        changed.write_text(self.job.recipe.read_text().replace("max_steps = 8", "max_steps = 9"))
        refused = self.job.command("run", "--run", self.job.run_directory, "--recipe", changed)
        self.assertEqual(refused.code, 2, refused)
        self.assertIn("transfer.max_steps", refused.err)

    def test_generate_writes_text(self) -> None:
        ended = self.job.command("generate", "--run", self.job.run_directory, "--max-new-tokens", "8", "A hacker is")
        self.assertEqual(ended.code, 0, ended)
        self.assertTrue(ended.out.strip())


if __name__ == "__main__":
    unittest.main()
