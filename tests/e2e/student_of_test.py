"""Another last stage on the student of a run that is done: `run --student-of`.

Catches: a transfer that is done again; an adapter that is not the one of a whole run with that recipe; a teacher's logits taken though
they are gone; a recipe that would need another student; a call that was killed before its journal was there.
"""

from __future__ import annotations

import shutil
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

CHANGES = {"finetune.objective": "kl", "finetune.rank": 4}
OTHER = {**CHANGES, "finetune.rank": 2, "finetune.target_modules": ["v_proj", "o_proj"], "finetune.learning_rate": 1e-3}


def newest(run: Path, kind: str) -> Path:
    return max(run.glob(f"{kind}/*"), key=lambda path: int(path.name.lstrip("t")))


def digests(run: Path) -> dict[str, str]:
    return {f"{kind}/{name}": job.digest(newest(run, kind) / name)
            for kind, name in (("student", "feature_maps.safetensors"), ("adapter", "adapter_model.safetensors"))}


class StudentOf(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.first, cls.alone = job.Job(CHANGES), job.Job(OTHER)
        for one in (cls.first, cls.alone):
            cls.addClassCleanup(one.close)
            ended = one.run()
            if ended.code != 0:
                raise AssertionError(f"hedgerow run: {ended}")

    def again(self, run: Path, recipe: str, *words: str | Path) -> job.Ended:
        path = self.first.root / f"{run.name}.toml"
        path.write_text(recipe)
        return self.first.command("run", "--run", run, "--recipe", path, "--student-of", self.first.run_directory, *words)

    def test_its_adapter_is_that_of_a_whole_run_and_only_the_last_stage_was_computed(self) -> None:
        run = self.first.root / "second"
        before = digests(self.first.run_directory)
        ended = self.again(run, job.recipe_text(OTHER))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(digests(run), digests(self.alone.run_directory))
        self.assertEqual(digests(self.first.run_directory), before)
        artifacts = list(run.glob("blocks/*/*.safetensors"))
        self.assertEqual(len(artifacts), 2)
        for path in artifacts:
            self.assertTrue(path.samefile(self.first.run_directory / path.relative_to(run)), f"{path} was trained again")
        checked = self.first.command("check", "--run", run)
        self.assertEqual(checked.code, 0, checked)
        again = self.first.command("run", "--run", run)
        self.assertEqual(again.code, 0, again)

    def test_a_call_that_was_killed_before_its_journal_takes_the_student_again(self) -> None:
        run = self.first.root / "killed"
        whole = self.first.root / "whole"
        ended = self.again(whole, job.recipe_text(OTHER), "--stop-before", "finetune")
        self.assertIn(ended.code, (0, 4), ended)
        run.mkdir()
        shutil.copy(whole / "run.toml", run / "run.toml")
        ended = self.again(run, job.recipe_text(OTHER))
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(digests(run), digests(self.alone.run_directory))

    def test_a_recipe_of_another_student_and_a_run_without_one_are_refused_by_name(self) -> None:
        for changes, expected in (({**OTHER, "transfer.learning_rate": 0.5}, "transfer.learning_rate: 0.01 -> 0.5"),
                                  ({**OTHER, "finetune.objective": "ce"}, "finetune.objective"),
                                  ({**OTHER, "attention.feature_dim": 32}, "attention.feature_dim")):
            with self.subTest(changes=changes):
                ended = self.again(self.first.root / "wrong", job.recipe_text(changes))
                self.assertEqual(ended.code, 2, ended)
                self.assertIn(expected, ended.err)
                self.assertFalse((self.first.root / "wrong").exists())
        empty = job.Job(CHANGES)
        self.addCleanup(empty.close)
        ended = empty.command("run", "--run", empty.run_directory, "--recipe", empty.recipe, "--student-of", empty.root)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("is no run directory", ended.err)


if __name__ == "__main__":
    unittest.main()
