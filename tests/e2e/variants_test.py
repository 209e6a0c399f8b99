"""Variants of a run: trained beside the recipe's own student from one teacher pass, with the bytes of runs of their own.

Catches: a trainer that another one of its layer moves; a variant lost or started anew by a kill; a student that is assembled from
another variant's tensors, or that no command takes; a recipe of the whole job that is not the variant's.
"""

from __future__ import annotations

import json
import re
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

CHANGES = {"plan.compute_dtype": "fp32", "finetune.enabled": False, "transfer.softmax_layers": [2]}
VARIANTS = """
[[variants]]
name = "narrow"
seeds = 2
attention.feature_dim = 32
attention.recall_cache = 0

[[variants]]
name = "slow"
transfer.learning_rate = 1e-3
transfer.gradient_clip = 0.0

[[variants]]
name = "capped-t2r"
attention.feature_map = "t2r"
attention.negation = false
attention.linear_cap = 20
"""
# What a run of its own changes, by student.
ALONE = {
    "narrow.s1": {"attention.feature_dim": 32, "attention.recall_cache": 0, "seed": 8},
    "slow.s0": {"transfer.learning_rate": 1e-3, "transfer.gradient_clip": 0.0},
    "capped-t2r.s0": {"attention.feature_map": "t2r", "attention.negation": False, "attention.linear_cap": 20},
}


def with_variants(variants: str = VARIANTS) -> job.Job:
    made = job.Job(CHANGES)
    made.recipe.write_text(made.recipe.read_text() + variants)
    return made


def students_of(run: Path) -> dict[str, dict[str, str]]:
    """Digests of what each student is, "" the recipe's own."""
    newest = max(run.glob("student/*"), key=lambda path: int(path.name.lstrip("t")))
    return {"" if folder == newest else folder.name:
            {name: job.digest(folder / name) for name in ("feature_maps.safetensors", "hedgerow.json")}
            for folder in (newest, *newest.glob("variants/*"))}


class Variants(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.job = with_variants()
        cls.addClassCleanup(cls.job.close)
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        cls.students = students_of(cls.job.run_directory)

    def test_each_has_the_bytes_of_a_run_of_its_own(self) -> None:
        self.assertEqual(set(self.students), {"", "narrow.s0", *ALONE})
        self.assertEqual(len({student["feature_maps.safetensors"] for student in self.students.values()}), 5)
        for name, changes in ALONE.items():
            with self.subTest(student=name):
                alone = job.Job({**CHANGES, "data.evaluate": None, **{key: value for key, value in changes.items() if key != "seed"}})
                self.addCleanup(alone.close)
                if "seed" in changes:
                    alone.recipe.write_text(alone.recipe.read_text().replace("seed = 7", f"seed = {changes['seed']}"))
                ended = alone.run()
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(students_of(alone.run_directory)[""], self.students[name])

    def test_a_kill_of_worker_and_coordinator_changes_no_byte_and_no_figure(self) -> None:
        for fault in ("worker.checkpoint.written@1:2", "coordinator.student.written"):
            with self.subTest(fault=fault):
                other = with_variants()
                self.addCleanup(other.close)
                other.run(fault=fault)
                self.assertTrue(other.fault_was_hit(fault))
                ended = other.run()
                self.assertEqual(ended.code, 0, ended)
                self.assertEqual(students_of(other.run_directory), self.students)
                self.assertEqual(self.figures(other), self.figures(self.job))

    def figures(self, of: job.Job) -> list[dict]:
        return [{key: value for key, value in row.items() if key not in ("seconds_per_step", "whole_job")} for row in self.rows(of)]

    def rows(self, of: job.Job) -> list[dict]:
        ended = of.command("metrics", "--variants", "--run", of.run_directory, "--json")
        self.assertEqual(ended.code, 0, ended)
        return json.loads(ended.out)["variants"]

    def test_a_row_a_variant_has_its_error_its_spread_and_its_bytes(self) -> None:
        rows = {row["variant"]: row for row in self.rows(self.job)}
        self.assertEqual(set(rows), {"recipe", "narrow", "slow", "capped-t2r"})
        narrow = rows["narrow"]
        self.assertEqual(narrow["seeds"], 2)
        for figure in (narrow["relative_mse"], narrow["kl"], narrow["texts"]["validation"]["kl"]):
            self.assertLess(figure["least"], figure["most"])
        self.assertLess(narrow["state_bytes"], rows["recipe"]["state_bytes"])
        self.assertGreater(rows["slow"]["relative_mse"]["median"], 0)
        self.assertTrue(any(row["on_front"] for row in rows.values()))
        for row in rows.values():
            self.assertGreater(row["seconds_per_step"]["median"], 0)
            self.assertGreater(row["whole_job"]["seconds"], 0)
        newest = max(self.job.run_directory.glob("evaluate/transfer.t*.json"), key=lambda path: int(path.stem.rpartition(".t")[2]))
        for one in json.loads(newest.read_text())["variants"]:
            row = rows[one["variant"]]
            self.assertEqual(row["layers"], 3 * row["seeds"])
            if row["seeds"] == 1:
                self.assertEqual(row["kept_untrained"], sum(layer.get("kept_untrained", False) for layer in one["layers"]))
            for figure, column in (("control_kl", "control"), ("window_kl", "equal_window")):
                texts = [text["columns"][column]["beyond"]["kl"] for text in (one, *one.get("texts", {}).values())]
                self.assertAlmostEqual(row[figure], sum(texts) / len(texts))
        shown = self.job.command("metrics", "--variants", "--run", self.job.run_directory)
        self.assertEqual(len(shown.out.splitlines()), 5, shown)
        status = self.job.status()
        self.assertEqual({row["variant"]: row["kl"] for row in status["variants"]}, {name: row["kl"] for name, row in rows.items()})
        text = self.job.command("status", "--run", self.job.run_directory).out
        self.assertRegex(text, r"(?m)^[* ] capped-t2r +1 ")

    def test_a_variants_student_is_evaluated_and_generates_as_any_other(self) -> None:
        newest = max(self.job.run_directory.glob("student/*"), key=lambda path: int(path.name.lstrip("t")))
        ended = self.job.command("generate", "--student", newest / "variants" / "narrow.s1", "--model", self.job.model,
                                 "--max-new-tokens", "3", "A hacker is")
        self.assertEqual(ended.code, 0, ended)

    def test_the_recipe_of_the_whole_job_is_the_variants_and_trains_every_layer(self) -> None:
        out = self.job.root / "whole.toml"
        ended = self.job.command("init", "--from", self.job.run_directory, "--variant", "narrow", "--out", out)
        self.assertEqual(ended.code, 0, ended)
        text = out.read_text()
        self.assertRegex(text, r"(?m)^feature_dim = 32 ")
        self.assertRegex(text, r"(?m)^softmax_layers = \[\]")
        self.assertRegex(text, r"(?m)^enabled = true ")
        self.assertNotIn("variants", text)
        self.assertEqual(self.job.command("plan", "--recipe", out).code, 0)
        unknown = self.job.command("init", "--from", self.job.run_directory, "--variant", "wide", "--out", self.job.root / "w.toml")
        self.assertEqual(unknown.code, 2, unknown)
        self.assertIn("has recipe, narrow, slow, capped-t2r", unknown.err)

    def test_what_each_layer_and_head_gives_back_is_measured_and_a_recipe_keeps_the_best(self) -> None:
        out, run = self.job.root / "kept.toml", self.job.run_directory
        keep = ("init", "--from", run, "--variant", "recipe", "--out", out, "--softmax-layers")
        unknown = self.job.command(*keep, "kl:1")
        self.assertEqual(unknown.code, 2, unknown)
        self.assertIn("has not measured its layers", unknown.err)
        found = {}
        for by in ("layers", "heads"):
            ended = self.job.command("evaluate", "--run", run, "--returns", by, "--json")
            self.assertEqual(ended.code, 0, ended)
            found[by] = json.loads(ended.out)
        layers, heads = found["layers"]["returns"], found["heads"]["returns"]
        self.assertEqual([row["layer"] for row in layers], [0, 1, 3])
        self.assertEqual([(row["layer"], row["head"]) for row in heads], [(layer, head) for layer in (0, 1, 3) for head in range(3)])
        self.assertEqual(len({row["kl"] for row in layers + heads}), 12)
        best = min(layers, key=lambda row: row["kl"])
        self.assertLess(best["kl"], found["layers"]["student"]["kl"])
        ended = self.job.command(*keep, "kl:1")
        self.assertEqual(ended.code, 0, ended)
        self.assertRegex(out.read_text(), rf"(?m)^softmax_layers = \[{best['layer']}\]")
        for given, expected in (("kl:4", "has 3 linear layers"), ("three", "expected layers as 3,7"), ("kl:", "expected layers as 3,7")):
            wrong = self.job.command(*keep[:-3], "--out", self.job.root / "other.toml", "--softmax-layers", given)
            self.assertEqual(wrong.code, 2, wrong)
            self.assertIn(expected, wrong.err)

    def test_wrong_variants_are_refused_before_anything_runs(self) -> None:
        for text, expected in (
                ('name = "a b"', r'variants\[0\].name = "a b": expected 1 to 40 letters'),
                ('name = "recipe"', r"variants\[0\].name .*the recipe's own student"),
                ('name = "x"\n[[variants]]\nname = "x"', r'variants\[1\].name = "x": two variants have this name'),
                ('name = "x"\ntransfer.max_steps = 9', r"variants\[0\].transfer.max_steps is the run's"),
                ('name = "x"\ndata.transfer.seq_len = 64', r"variants\[0\].data is not a known key"),
                ('name = "x"\nattention.feature_dim = 63', r"variants\[0\].attention.feature_dim"),
                ('name = "x"\nseeds = 0', r"variants\[0\].seeds = 0"),
                ('name = "x"\nseeds = 50', r"variants .*51 students")):
            with self.subTest(text=text):
                wrong = with_variants(f"\n[[variants]]\n{text}\n")
                self.addCleanup(wrong.close)
                ended = wrong.run()
                self.assertEqual(ended.code, 2, ended)
                self.assertRegex(ended.err, expected)
                self.assertTrue(re.search(r"recipe\.toml(:\d+)?: ", ended.err), ended)


if __name__ == "__main__":
    unittest.main()
