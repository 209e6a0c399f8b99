"""Tasks of lm-eval over a run, by its own harness: our model class beside lm-eval's `hf` on the export, and transformers' generate.

Catches: a continuation that is scored from the wrong token, a prompt that is cut or gets its first token twice, an answer that goes
on behind its end, a control that is not the window, a task whose data is missing and that is evaluated all the same.
"""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "support"))
sys.path.append(str(REPOSITORY / "deploy" / "huggingface" / "tasks"))
sys.path.append(str(REPOSITORY / "deploy" / "huggingface"))
import job  # noqa: E402

try:
    import lm_eval  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
except ImportError as error:
    raise unittest.SkipTest(f"{error}; deploy/setup --tests --evaluate installs it") from None

QUESTIONS = [("Where does water boil?", "In a kettle.", "In a hat."), ("What do sheep eat?", "Grass.", "Iron and old letters."),
             ("How is a door opened?", "With a key.", "With a spoon, mostly."), ("When is it dark?", "At night.", "At noon.")]


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.job = job.Job.finished()
        cls.addClassCleanup(cls.job.close)
        cls.run_directory = str(cls.job.run_directory)
        cls.data = cls.job.root / "data"
        (cls.data / "piqa").mkdir(parents=True)
        (cls.data / "piqa" / "valid.jsonl").write_text(
            "".join(json.dumps({"goal": goal, "sol1": one, "sol2": two}) + "\n" for goal, one, two in QUESTIONS))
        (cls.data / "piqa" / "valid-labels.lst").write_text("0\n" * len(QUESTIONS))

    def tasks(self, *words: str) -> job.Ended:
        return self.job.command("evaluate", "--run", self.run_directory, "--json", "--device", "cpu", *words)

    def instances(self, kind: str, pairs: list[tuple]) -> list:
        from lm_eval.api.instance import Instance
        return [Instance(request_type=kind, doc={}, arguments=pair, idx=index) for index, pair in enumerate(pairs)]

    def ours(self, subject: str):
        from hedgerow_lm import Hedgerow
        ended = self.job.command("evaluate", "--run", self.run_directory, "--print-subjects", "--json", "--device", "cpu")
        self.assertEqual(ended.code, 0, ended)
        found = json.loads(ended.out)
        arguments = next(one["arguments"] for one in found["subjects"] if one["name"] == subject)
        arguments = [*arguments]
        arguments[arguments.index("--compute-dtype") + 1] = "fp32"
        model = Hedgerow(words=[found["worker"], "answer", *arguments], model=found["model"])
        self.addCleanup(model.close)
        return model

    def test_our_class_and_lm_evals_hf_on_the_export_agree(self) -> None:
        export = self.job.root / "export"
        ended = self.job.command("export", "--run", self.run_directory, "--subject", "transfer", "--out", export)
        self.assertEqual(ended.code, 0, ended)
        from lm_eval.models.huggingface import HFLM
        theirs = HFLM(pretrained=str(export), trust_remote_code=True, dtype="float32", device="cpu", batch_size=1)
        ours = self.ours("transfer")
        # Beyond two windows, so that the linear branch has keys.
        long = " ".join(question for question, _, _ in QUESTIONS) * 6
        pairs = [(f"Question: {goal}\nAnswer:", f" {answer}") for goal, *answers in QUESTIONS for answer in answers]
        pairs += [(long, " With a key."), ("", "Grass is green.")]
        for (a, greedy_a), (b, greedy_b), pair in zip(ours.loglikelihood(self.instances("loglikelihood", pairs)),
                                                      theirs.loglikelihood(self.instances("loglikelihood", pairs)), pairs):
            self.assertAlmostEqual(a, b, delta=1e-3, msg=str(pair))
            self.assertEqual(greedy_a, greedy_b, pair)
        rolling = self.instances("loglikelihood_rolling", [(long,)])
        self.assertAlmostEqual(ours.loglikelihood_rolling(rolling)[0], theirs.loglikelihood_rolling(rolling)[0], delta=1e-2)
        prompts = [(long, {"until": ["\n"], "max_gen_toks": 12, "do_sample": False}),
                   ("Sheep eat", {"until": ["."], "max_gen_toks": 12, "do_sample": False})]
        self.assertEqual(ours.generate_until(self.instances("generate_until", prompts)),
                         theirs.generate_until(self.instances("generate_until", prompts)))

    def test_the_teachers_answers_to_a_passkey_are_transformers_tokens(self) -> None:
        import recall
        documents = recall.documents("passkey", self.job.model, [1024], 2, 7)
        tokenizer = AutoTokenizer.from_pretrained(self.job.model)
        model = AutoModelForCausalLM.from_pretrained(self.job.model, dtype=torch.float32)
        ours = self.ours("teacher")
        for document in documents:
            ids = ours.tok_encode(document["prompt"])
            self.assertTrue(900 < len(ids) <= 1040, len(ids))
            self.assertIn(document["answer"], document["prompt"])
            expected = model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False)[0, len(ids):].tolist()
            found = ours.worker.ask({"generate": [ids], "max_new_tokens": 8})["rows"][0]
            self.assertEqual(found, expected)
        self.assertEqual(tokenizer.encode("a b"), ours.tok_encode("a b"))

    def test_the_control_sees_a_window_of_a_long_text_and_all_of_a_short_one(self) -> None:
        words = ["Once upon a time there was a key. " * 12]
        control, teacher = self.ours("control"), self.ours("teacher")
        scores = [model.loglikelihood_rolling(self.instances("loglikelihood_rolling", [tuple(words)]))[0]
                  for model in (control, teacher)]
        self.assertNotAlmostEqual(scores[0], scores[1], places=2, msg="a window sees less")
        short = self.instances("loglikelihood", [("Sheep eat", " grass.")])
        self.assertAlmostEqual(control.loglikelihood(short)[0][0], teacher.loglikelihood(short)[0][0], delta=1e-4)

    def test_all_subjects_stand_side_by_side_and_the_run_records_them(self) -> None:
        ended = self.tasks("--tasks", "piqa", "--data", str(self.data), "--limit", "2")
        self.assertEqual(ended.code, 0, ended)
        ended = self.tasks("--tasks", "piqa,kv_recall", "--data", str(self.data), "--limit", "4", "--lengths", "128")
        self.assertEqual(ended.code, 0, ended)
        recorded = json.loads((self.job.run_directory / "evaluate" / "tasks.json").read_text())
        self.assertEqual(sorted(recorded["tasks"]), ["kv_recall", "piqa"])
        for task, metric in (("piqa", "acc"), ("kv_recall", "exact_match")):
            entry = recorded["tasks"][task]
            self.assertEqual(list(entry["subjects"]), ["control", "equal_window", "lora", "teacher", "transfer"])
            self.assertEqual(entry["samples"], 4)
            self.assertRegex(entry["text_hash"], "^[0-9a-f]{16}$")
            for figures in entry["subjects"].values():
                self.assertTrue(0.0 <= figures["metrics"][metric]["value"] <= 1.0)
                self.assertIn("stderr", figures["metrics"][metric])

    def test_a_task_without_its_data_is_one_error_with_the_path(self) -> None:
        ended = self.tasks("--tasks", "arc_easy", "--data", str(self.data))
        self.assertEqual(ended.code, 2, ended)
        self.assertIn(str(self.data / "arc" / "ARC-Easy-Test.jsonl"), ended.err + ended.out)
        self.assertNotIn("Traceback", ended.err)


if __name__ == "__main__":
    unittest.main()
