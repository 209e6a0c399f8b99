"""An export in transformers against hedgerow-worker, on real weights: SmolLM2's first four layers, both windows
and the maps of the exponential.

Catches: a tensor written under another name or dtype than the modeling file reads, an attention setting lost on the way
into config.json, generation that depends on how prompts are batched, an adapter that PEFT reads differently than we do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
import job  # noqa: E402
import support  # noqa: E402

support.require("torch", "transformers", "peft", "h5py", "safetensors")

import h5py  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402

TOLERANCE = 1e-3  # of a logit, fp32 on both sides
NEW_TOKENS = 40
PROMPTS = ("A hacker is", "In a Unix system, the origin of the word bug is told as follows: when",
           "The file that holds it all was first written at a laboratory in which nobody slept, and where everyone who came "
           "in by day left a note on the blackboard for those who came in by night; over the years the notes grew into")


def load(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True, dtype=torch.float32).eval()


class ExportParity:
    """The tests of one window and feature map; a run, its exports, and our logits are made once."""

    attention: dict[str, object] = {}  # of the recipe, where it is not the job's own

    @classmethod
    def setUpClass(cls) -> None:
        cls.job = job.Job({**job.MORE_EVALUATION, **{f"attention.{key}": value for key, value in cls.attention.items()}})
        cls.addClassCleanup(cls.job.close)
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        cls.export = cls.job.root / "export"
        exported = cls.job.command("export", "--run", cls.job.run_directory, "--subject", "transfer", "--out", cls.export)
        if exported.code != 0:
            raise AssertionError(f"hedgerow export: {exported}")
        cls.model = load(cls.export)
        with h5py.File(cls.job.run_directory / "tokens" / "evaluate.h5") as file:
            cls.ids = torch.from_numpy(file["input_ids"][:].astype("int64"))

    def newest(self, folder: str) -> Path:
        return max((self.job.run_directory / folder).iterdir(), key=lambda path: int(path.name.lstrip("t")))

    def our_logits(self, *more: str | Path) -> torch.Tensor:
        """[sequences, T, V] of hedgerow-worker in fp32."""
        out = self.job.root / "logits.safetensors"
        words = [self.job.bin / "hedgerow-worker", "evaluate", "--model", self.job.model, "--student", self.newest("student"),
                 "--tokens", self.job.run_directory / "tokens" / "evaluate.h5", "--compute-dtype", "fp32", "--logits", out,
                 *more]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return load_file(out)["logits"]

    @torch.no_grad()
    def test_logits_equal_ours(self) -> None:
        self.assertEqual(self.ids.numel(), 512)
        difference = (self.model(self.ids, use_cache=False).logits - self.our_logits()).abs().max()
        self.assertLessEqual(float(difference), TOLERANCE)

    @torch.no_grad()
    def test_the_adapter_in_peft_gives_our_logits(self) -> None:
        from peft import PeftModel
        adapter = self.newest("adapter")
        tuned = PeftModel.from_pretrained(load(self.export), adapter)
        found, expected = tuned(self.ids, use_cache=False).logits, self.our_logits("--adapter", adapter)
        self.assertLessEqual(float((found - expected).abs().max()), TOLERANCE)
        self.assertGreater(float((found - self.model(self.ids, use_cache=False).logits).abs().max()), TOLERANCE,
                           "the adapter changes nothing")

    @torch.no_grad()
    def test_generation_equals_the_full_forward_and_does_not_depend_on_the_batch(self) -> None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.export, padding_side="left")
        arguments = dict(max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=tokenizer.pad_token_id)
        batch = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
        together = self.model.generate(**batch, **arguments)[:, batch["input_ids"].shape[1]:]
        for prompt, row in zip(PROMPTS, together):
            ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
            whole = torch.cat((ids, row[None]), dim=1)
            logits = self.model(whole, use_cache=False).logits[0, ids.shape[1] - 1:-1]
            best = logits.max(-1).values - logits.gather(1, row[:, None])[:, 0]
            # Where two logits are as good as equal either may be chosen.
            self.assertLessEqual(float(best.max()), TOLERANCE, f"{prompt!r}")

    def test_the_tokenizer_loads_without_asking_about_code(self) -> None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.export)
        ours = AutoTokenizer.from_pretrained(self.job.model)
        for prompt in PROMPTS:
            self.assertEqual(tokenizer(prompt)["input_ids"], ours(prompt)["input_ids"])
        self.assertEqual(tokenizer.chat_template, ours.chat_template)

    @torch.no_grad()
    def test_our_generation_equals_theirs(self) -> None:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(self.export)
        generated = self.job.command("generate", "--run", self.job.run_directory, "--subject", "transfer", "--json",
                                     "--max-new-tokens", str(NEW_TOKENS), *PROMPTS)
        self.assertEqual(generated.code, 0, generated)
        for line in generated.out.splitlines():
            reply = json.loads(line)
            ids = tokenizer(reply["prompt"], return_tensors="pt")["input_ids"]
            row = torch.tensor(reply["ids"])
            logits = self.model(torch.cat((ids, row[None]), dim=1), use_cache=False).logits[0, ids.shape[1] - 1:-1]
            behind = logits.max(-1).values - logits.gather(1, row[:, None])[:, 0]
            # Ours ran in the run's compute dtype, which may be bf16: a chosen token is never clearly worse.
            self.assertLessEqual(float(behind.max()), 0.25, reply["prompt"])

    def test_the_export_with_lora_merged_loads(self) -> None:
        out = self.job.root / "merged"
        exported = self.job.command("export", "--run", self.job.run_directory, "--out", out)
        self.assertEqual(exported.code, 0, exported)
        with torch.no_grad():
            merged = load(out)(self.ids, use_cache=False).logits
        expected = self.our_logits("--adapter", self.newest("adapter"))
        # The merged weights are rounded to bf16 once; the unmerged ones are not.
        self.assertLess(float((merged - expected).abs().mean()), 0.05)


class Sliding(ExportParity, unittest.TestCase):
    attention = {"window": "sliding"}


class Terraced(ExportParity, unittest.TestCase):
    attention = {"window": "terraced"}


class PositiveRandom(ExportParity, unittest.TestCase):
    attention = {"feature_map": "positive_random", "start": "orthogonal_chi", "feature_dim": 64, "negation": False, "bias": False}


class Taylor(ExportParity, unittest.TestCase):
    attention = {"feature_map": "taylor", "feature_dim": 1 + 64 + 64 * 65 // 2, "negation": False, "bias": False}


if __name__ == "__main__":
    unittest.main()
