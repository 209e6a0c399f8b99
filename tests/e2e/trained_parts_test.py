"""A job without a transfer whose finetune trains everything it can: LoRA of attention and MLP, maps, window factors, norms.

Catches: a part that is trained but not published, published but not loaded, or loaded by one command and not by the next;
teacher and control measured with the student's norms; a kill that changes a byte of what is trained.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

TRAINED = "adapter/*/trained_parameters.safetensors"
CHANGES = {
    **job.MORE_EVALUATION,
    "plan.compute_dtype": "fp32",
    "transfer.max_steps": 0,
    "finetune.trainable": ["lora", "maps", "window_factors", "norms"],
    "finetune.target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "finetune.learning_rate": 1e-3,
    "finetune.sequences_per_step": 6,
}


def trained_of(run: Path) -> Path:
    return max(run.glob(TRAINED), key=lambda path: int(path.parent.name.lstrip("t")))


class EverythingTrained(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.job = job.Job(CHANGES)
        cls.addClassCleanup(cls.job.close)
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        cls.run_directory = cls.job.run_directory

    def evaluated(self, subject: str) -> dict:
        ended = self.job.command("evaluate", "--run", self.run_directory, "--subject", subject, "--json")
        self.assertEqual(ended.code, 0, ended)
        return json.loads(ended.out)

    def worker(self, *words: object) -> None:
        done = subprocess.run([self.job.bin / "hedgerow-worker", *map(str, words)], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_the_start_is_the_student_and_the_finetune_moves_it(self) -> None:
        status = self.job.status()
        layers = [layer for task in status["tasks"] if task["stage"] == "transfer"
                  for layer in (task.get("result") or {}).get("layers", [])]
        self.assertEqual(len(layers), 4)
        self.assertFalse([layer for layer in layers if "kept_untrained" in layer])
        metrics = [json.loads(line) for file in self.run_directory.glob("attempts/*/metrics.jsonl")
                   for line in file.read_text().splitlines()]
        norms = [line["update_norms"] for line in metrics if "update_norms" in line]
        self.assertTrue(norms)
        for of_step in norms:
            self.assertEqual(set(of_step), {*CHANGES["finetune.target_modules"], "maps", "window_factors", "norms"})
            self.assertGreater(min(of_step.values()), 0)
        self.assertLess(self.evaluated("lora")["perplexity"], self.evaluated("transfer")["perplexity"])

    def test_teacher_and_control_are_measured_with_the_norms_that_they_had(self) -> None:
        lora, transfer = self.evaluated("lora"), self.evaluated("transfer")
        for column in ("teacher", "control"):
            self.assertEqual(lora["columns"][column], transfer["columns"][column])
        self.assertNotEqual(lora["columns"]["student"], transfer["columns"]["student"])

    def test_a_killed_stage_resumes_to_the_same_bytes(self) -> None:
        other = job.Job(CHANGES)
        self.addCleanup(other.close)
        fault = "worker.finetune.checkpoint.written:2"
        other.run(fault=fault)
        self.assertTrue(other.fault_was_hit(fault))
        ended = other.run()
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(other.artifacts(), self.job.artifacts())
        self.assertEqual(job.digest(trained_of(other.run_directory)), job.digest(trained_of(self.run_directory)))

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun on this machine")
    def test_ranks_that_divide_the_six_micro_batches_or_do_not_leave_the_same_bytes(self) -> None:
        student = next(self.run_directory.glob("student/*"))
        found = []
        for ranks in (1, 3, 4):
            run = self.job.root / f"ranks{ranks}"
            shutil.copytree(self.run_directory, run)
            done = subprocess.run(
                ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none",
                 "-n", str(ranks), self.job.bin / "hedgerow-worker", "finetune", "--run", run, "--student",
                 f"student/{student.name}", "--token", "900", "--threads", "1"],
                env={**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
                capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stderr)
            files = sorted((run / "adapter/t900").iterdir())
            found.append({file.name: job.digest(file) for file in files})
        self.assertIn("trained_parameters.safetensors", found[0])
        self.assertEqual(found[1], found[0])
        self.assertEqual(found[2], found[0])

    def test_generate_goes_on_from_a_prompt(self) -> None:
        ended = self.job.command("generate", "--run", self.run_directory, "--json", "--max-new-tokens", "4", "A hacker is")
        self.assertEqual(ended.code, 0, ended)

    def test_batches_of_a_file_draw_what_all_prompts_together_draw(self) -> None:
        file = self.job.root / "prompts.txt"
        file.write_text("A hacker is\nThe word bug\nA hacker is\n")
        words = ("generate", "--run", self.run_directory, "--json", "--max-new-tokens", "6", "--temperature", "1", "--prompts", file)
        together = self.job.command(*words)
        self.assertEqual(together.code, 0, together)
        rows = [json.loads(line)["ids"] for line in together.out.splitlines()]
        self.assertEqual(len(rows), 3)
        self.assertNotEqual(rows[0], rows[2], "each row draws its own")
        batches = self.job.command(*words, "--batch", "2")
        self.assertEqual((batches.code, batches.out), (0, together.out), batches)

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun on this machine")
    def test_ranks_that_share_the_layers_generate_what_one_process_does(self) -> None:
        words = ("generate", "--run", self.run_directory, "--json", "--max-new-tokens", "12", "A hacker is",
                 "The file that holds it all was first written at a laboratory in which nobody slept")
        alone = self.job.command(*words)
        self.assertEqual(alone.code, 0, alone)
        self.assertEqual(len(alone.out.splitlines()), 2)
        for ranks in ("2", "3"):
            together = self.job.command(*words, "--ranks", ranks)
            self.assertEqual((together.code, together.out), (0, alone.out), together)

    def test_the_adapter_form_cannot_carry_norms_and_says_so(self) -> None:
        out = self.job.root / "adapter-form"
        ended = self.job.command("export", "--run", self.run_directory, "--adapter", "--out", out)
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("norms were trained", ended.err)
        self.assertFalse(out.exists())

    def test_the_export_has_the_logits_of_the_evaluated_student(self) -> None:
        try:
            import h5py
            import torch
            import transformers
            from safetensors.torch import load_file
        except ImportError as missing:
            self.skipTest(f"{missing}; deploy/setup --tests installs the packages of these tests")
        out, logits = self.job.root / "export", self.job.root / "logits.safetensors"
        ended = self.job.command("export", "--run", self.run_directory, "--out", out)
        self.assertEqual(ended.code, 0, ended)
        tokens = self.run_directory / "tokens" / "evaluate.h5"
        adapter = trained_of(self.run_directory).parent
        self.worker("evaluate", "--model", self.job.model, "--tokens", tokens, "--compute-dtype", "fp32", "--logits", logits,
                    "--student", next(self.run_directory.glob("student/*")), "--adapter", adapter)
        with h5py.File(tokens) as file:
            ids = torch.from_numpy(file["input_ids"][:].astype("int64"))
        model = transformers.AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True, dtype=torch.float32).eval()
        with torch.no_grad():
            found = model(ids, use_cache=False).logits
        self.assertLessEqual(float((found - load_file(logits)["logits"]).abs().max()), 1e-3)
        parts = load_file(adapter / "trained_parameters.safetensors")
        written = {name: tensor for file in out.glob("model-*.safetensors") for name, tensor in load_file(file).items()}
        for name, tensor in parts.items():
            self.assertTrue(torch.equal(written[name], tensor), name)



class AllLayersKeepTheirSoftmax(unittest.TestCase):
    """The reference beside a student: LoRA alone, trained on the text."""

    def test_lora_alone_is_trained_and_evaluated_and_generates(self) -> None:
        reference = job.Job({**job.MORE_EVALUATION, "transfer.softmax_layers": "all", "finetune.objective": "ce",
                             "finetune.learning_rate": 1e-3})
        self.addCleanup(reference.close)
        ended = reference.run()
        self.assertEqual(ended.code, 0, ended)
        status = reference.status()
        self.assertEqual([task for task in status["tasks"] if task["stage"] in ("capture", "transfer")], [])
        results = {task["id"]: task["result"] for task in status["tasks"]}
        teacher, lora = results["evaluate/teacher"], results["evaluate/lora"]
        self.assertLess(lora["perplexity"], teacher["perplexity"])
        self.assertEqual(results["evaluate/transfer"]["perplexity"], teacher["perplexity"], "the student is the teacher")
        sums = results["finetune"]["update_sums"]
        self.assertEqual([one["layer"] for one in sums], [0, 1, 2, 3])
        self.assertEqual(set(sums[0]), {"layer"} | {f"{module}/{factor}" for module in ("q_proj", "k_proj", "v_proj", "o_proj")
                                                    for factor in "AB"})
        ended = reference.command("generate", "--run", reference.run_directory, "--json", "--max-new-tokens", "4", "A hacker is")
        self.assertEqual(ended.code, 0, ended)


if __name__ == "__main__":
    unittest.main()
