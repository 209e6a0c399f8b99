"""An export in transformers against hedgerow-worker, on real weights: SmolLM2's first four layers, both windows with the
sinks and key maps of a recipe that says nothing of them, a student without either, and the maps of the exponential.

Catches: a tensor written under another name or dtype than the modeling file reads, an attention setting lost on the way
into config.json, generation that depends on how prompts are batched, an adapter that PEFT reads differently than we do, a
command that computes a run's model in another precision than the run.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
sys.path.append(str(Path(__file__).resolve().parents[2] / "deploy" / "huggingface"))
import job  # noqa: E402
import support  # noqa: E402

support.require("torch", "transformers", "peft", "h5py", "safetensors")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from make_tokens import content_hash  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from stranger_models import random_model  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, pipeline  # noqa: E402

TOLERANCE = 1e-3  # of a logit, fp32 on both sides
# How far a greedy token's logit may lie behind the largest of the same subject's full forward: where two are as good as
# equal, rounding decides. A logit of 16 to 32 is a multiple of 0.125 in bf16, and each side may round it up or down.
TIE = {"fp32": TOLERANCE, "bf16": 0.25}
NEW_TOKENS = 40
SMALL = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=49152, max_position_embeddings=2048, bos_token_id=1, eos_token_id=2, pad_token_id=2,
             tie_word_embeddings=True)
PROMPTS = ("A hacker is", "In a Unix system, the origin of the word bug is told as follows: when",
           "The file that holds it all was first written at a laboratory in which nobody slept, and where everyone who came "
           "in by day left a note on the blackboard for those who came in by night; over the years the notes grew into")


def load(directory: Path, **arguments):
    return AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True, **arguments).eval()


def farthest_behind(logits: torch.Tensor, prompts: list[list[int]], rows: list[list[int]]) -> float:
    """How far a row's tokens lie behind the largest logit at their position, at most; logits [rows, T, V] of prompt and row."""
    gaps = []
    for of_row, prompt, row in zip(logits.float(), prompts, rows):
        choices = of_row[len(prompt) - 1:len(prompt) + len(row) - 1]
        gaps.append(choices.max(-1).values - choices.gather(1, torch.tensor(row)[:, None])[:, 0])
    return float(torch.cat(gaps).max())


class ExportParity:
    """The tests of one window and feature map; a run, its exports, and our logits are made once."""

    attention: dict[str, object] = {}  # of the recipe, where it is not the job's own
    family: dict[str, object] = {}  # transformers' configuration of a random teacher; empty: SmolLM2
    compute_dtype = "fp32"
    has_last_stage = False

    @classmethod
    def setUpClass(cls) -> None:
        teacher = {"model.path": str(cls.random_teacher())} if cls.family else {}
        cls.job = job.Job({**job.MORE_EVALUATION, **teacher, "plan.compute_dtype": cls.compute_dtype,
                           "finetune.enabled": cls.has_last_stage,
                           **{f"attention.{key}": value for key, value in cls.attention.items()}})
        cls.addClassCleanup(cls.job.close)
        cls.job.model = Path(teacher.get("model.path", cls.job.model))
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        cls.export = cls.job.root / "export"
        exported = cls.job.command("export", "--run", cls.job.run_directory, "--subject", "transfer", "--out", cls.export)
        if exported.code != 0:
            raise AssertionError(f"hedgerow export: {exported}")
        cls.model = load(cls.export, dtype=torch.float32)
        with h5py.File(cls.job.run_directory / "tokens" / "evaluate.h5") as file:
            cls.ids = torch.from_numpy(file["input_ids"][:].astype("int64"))

    @classmethod
    def random_teacher(cls) -> Path:
        """Random weights of `family`, with SmolLM2's tokenizer."""
        directory = Path(tempfile.mkdtemp(prefix="hedgerow-teacher-"))
        cls.addClassCleanup(shutil.rmtree, directory)
        config = AutoConfig.for_model(**SMALL, **cls.family)
        random_model(config).to(torch.bfloat16).save_pretrained(directory)
        for file in job.cut_model(4).glob("*token*"):
            shutil.copy(file, directory)
        return directory

    def test_its_config_says_sinks_and_key_maps_and_the_weights_have_that_form(self) -> None:
        random = self.attention.get("feature_map") == "positive_random"
        config = json.loads((self.export / "config.json").read_text())
        self.assertEqual(config["auto_map"]["AutoModel"], "modeling_hedgerow.HedgerowModel")
        found = config["hedgerow"]["attention"]
        expected = {"num_sinks": 4, "key_maps": "query_head" if random else "kv_head", **self.attention}
        self.assertEqual({key: found[key] for key in expected}, expected)
        card = (self.export / "README.md").read_text()
        for key in ("num_sinks", "key_maps"):
            self.assertIn(f"{key} = {json.dumps(expected[key])}", card)
        attention = self.model.model.layers[0].self_attn
        self.assertEqual(attention.num_sinks, expected["num_sinks"])
        if attention.feature_map_k.mlp is not None:
            heads = attention.kv_heads if expected["key_maps"] == "kv_head" else attention.heads
            self.assertEqual(attention.feature_map_k.mlp.layer.shape[0], heads)
            self.assertLess(attention.kv_heads, attention.heads)

    def newest(self, folder: str) -> Path:
        return max((self.job.run_directory / folder).iterdir(), key=lambda path: int(path.name.lstrip("t")))

    def our_logits(self, subject: str = "transfer", dtype: str = "fp32", ids: torch.Tensor | None = None) -> torch.Tensor:
        """[sequences, T, V] of hedgerow-worker, over the run's evaluation tokens or over these."""
        out, tokens = self.job.root / "logits.safetensors", self.job.run_directory / "tokens" / "evaluate.h5"
        if ids is not None:
            tokens = self.write_tokens(ids)
        words = [self.job.bin / "hedgerow-worker", "evaluate", "--model", self.job.model, "--tokens", tokens,
                 "--compute-dtype", dtype, "--logits", out]
        if subject != "teacher":
            words += ["--student", self.newest("student")]
        if subject == "lora":
            words += ["--adapter", self.newest("adapter")]
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return load_file(out)["logits"].clone()  # the file is written again

    def write_tokens(self, ids: torch.Tensor) -> Path:
        """A tokens file of these sequences, otherwise like the run's own."""
        out = self.job.root / "more.h5"
        rows = ids.numpy().astype("int32")
        flags = [np.ones(rows.shape, np.uint8), np.zeros(rows.shape, np.uint8)]
        with h5py.File(self.job.run_directory / "tokens" / "evaluate.h5") as own, h5py.File(out, "w") as file:
            file["input_ids"], file["loss_mask"], file["document_starts"] = rows, *flags
            for key, value in {**own.attrs, "num_train": 0, "content_hash": content_hash(rows, *flags)}.items():
                file.attrs[key] = value
        return out

    def generated(self, subject: str, *more: str) -> tuple[list[list[int]], list[list[int]]]:
        """Ids of the prompts, and what `hedgerow generate` goes on with."""
        tokenizer = AutoTokenizer.from_pretrained(self.export)
        ended = self.job.command("generate", "--run", self.job.run_directory, "--subject", subject, "--json",
                                 "--max-new-tokens", str(NEW_TOKENS), *more, *PROMPTS)
        self.assertEqual(ended.code, 0, ended)
        replies = [json.loads(line) for line in ended.out.splitlines()]
        self.assertEqual({reply["compute_dtype"] for reply in replies}, {self.compute_dtype})
        return [tokenizer(prompt)["input_ids"] for prompt in PROMPTS], [reply["ids"] for reply in replies]

    @torch.no_grad()
    def test_logits_equal_ours(self) -> None:
        self.assertEqual(self.ids.numel(), 512)
        difference = (self.model(self.ids, use_cache=False).logits - self.our_logits()).abs().max()
        self.assertLessEqual(float(difference), TOLERANCE)

    @torch.no_grad()
    def test_generation_equals_the_full_forward_and_does_not_depend_on_the_batch(self) -> None:
        tokenizer = AutoTokenizer.from_pretrained(self.export, padding_side="left")
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

    @torch.no_grad()
    def test_our_generation_equals_theirs(self) -> None:
        more: tuple[str, ...] = ()
        model = self.model
        if self.compute_dtype == "bf16":
            # transformers rounds q and k elsewhere, and of two keys that are recalled as badly another may stay.
            more, out = ("--recall-cache", "0"), self.job.root / "rounded"
            ended = self.job.command("export", "--run", self.job.run_directory, "--subject", "transfer", *more, "--out", out)
            self.assertEqual(ended.code, 0, ended)
            model = load(out)
        for prompt, row in zip(*self.generated("transfer", *more)):
            logits = model(torch.tensor([prompt + row]), use_cache=False).logits
            self.assertLessEqual(farthest_behind(logits, [prompt], [row]), TIE[self.compute_dtype])


class WithAnAdapter(ExportParity):
    """What the attention does not change: once a family of models."""

    has_last_stage = True

    @torch.no_grad()
    def test_the_adapter_in_peft_gives_our_logits(self) -> None:
        from peft import PeftModel
        adapter = self.newest("adapter")
        tuned = PeftModel.from_pretrained(load(self.export, dtype=torch.float32), adapter)
        found, expected = tuned(self.ids, use_cache=False).logits, self.our_logits("lora")
        self.assertLessEqual(float((found - expected).abs().max()), TOLERANCE)
        self.assertGreater(float((found - self.model(self.ids, use_cache=False).logits).abs().max()), TOLERANCE,
                           "the adapter changes nothing")

    def test_the_tokenizer_is_the_teachers_without_a_question_or_a_warning(self) -> None:
        ours = AutoTokenizer.from_pretrained(self.job.model)
        for trust in (None, False, True):
            with mock.patch("builtins.input", side_effect=AssertionError("asked whether the code may run")), \
                    self.assertNoLogs("transformers", "WARNING"), warnings.catch_warnings(action="error"):
                tokenizer = AutoTokenizer.from_pretrained(self.export, trust_remote_code=trust)
            self.assertIs(type(tokenizer), type(ours))
            for prompt in PROMPTS:
                self.assertEqual(tokenizer(prompt)["input_ids"], ours(prompt)["input_ids"])
            self.assertEqual(tokenizer.chat_template, ours.chat_template)


class OnePrecision(WithAnAdapter):
    """A subject is the same in generate, evaluate and the export: whatever computes it does so in the run's precision."""

    @torch.no_grad()
    def test_a_subjects_greedy_tokens_are_the_largest_logits_of_its_evaluated_form(self) -> None:
        for subject in ("teacher", "transfer", "lora"):
            evaluated = self.job.command("evaluate", "--run", self.job.run_directory, "--subject", subject, "--json")
            self.assertEqual(json.loads(evaluated.out)["compute_dtype"], self.compute_dtype, evaluated)
            prompts, rows = self.generated(subject)
            whole = [torch.tensor(prompt + row) for prompt, row in zip(prompts, rows)]
            ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)  # what follows a row changes nothing before it
            behind = farthest_behind(self.our_logits(subject, self.compute_dtype, ids), prompts, rows)
            self.assertLessEqual(behind, TIE[self.compute_dtype], subject)

    @torch.no_grad()
    def test_the_merged_export_loads_in_the_runs_precision_and_is_the_evaluated_model(self) -> None:
        out = self.job.root / "merged"
        exported = self.job.command("export", "--run", self.job.run_directory, "--out", out)
        self.assertEqual(exported.code, 0, exported)
        merged = load(out)
        self.assertEqual(merged.dtype, {"fp32": torch.float32, "bf16": torch.bfloat16}[self.compute_dtype])
        theirs, ours = merged(self.ids, use_cache=False).logits.float(), self.our_logits("lora", self.compute_dtype)
        if self.compute_dtype == "fp32":
            self.assertLessEqual(float((theirs - ours).abs().max()), TOLERANCE)
        else:  # transformers rounds between the operations of a norm or a rotation too: its error is larger than ours
            rounding = (ours - self.our_logits("lora")).abs().mean()
            self.assertLess(float((theirs - ours).abs().mean()), 2 * float(rounding))
        prompts, rows = self.generated("lora")
        for prompt, row in zip(prompts, rows):
            logits = merged(torch.tensor([prompt + row]), use_cache=False).logits
            self.assertLessEqual(farthest_behind(logits, [prompt], [row]), TIE[self.compute_dtype])


class Sliding(OnePrecision, unittest.TestCase):
    attention = {"window": "sliding"}

    def test_a_pipeline_continues_a_prompt_as_the_model_does(self) -> None:
        texts = pipeline("text-generation", str(self.export), trust_remote_code=True, dtype=torch.float32)
        (found,) = texts(PROMPTS[0], max_new_tokens=8, do_sample=False)
        ids = texts.tokenizer(PROMPTS[0], return_tensors="pt")
        expected = self.model.generate(**ids, max_new_tokens=8, do_sample=False)
        self.assertEqual(found["generated_text"], texts.tokenizer.decode(expected[0], skip_special_tokens=True))


class Terraced(OnePrecision, unittest.TestCase):
    """As the quickstart's."""

    attention = {"window": "terraced", "feature_dim": 128}
    compute_dtype = "bf16"


class WithARecallCache(ExportParity, unittest.TestCase):
    """Keys that left the window and stay exact: both sides choose the same."""

    attention = {"window": "terraced", "recall_cache": 16}
    has_last_stage = True

    @torch.no_grad()
    def test_a_student_of_a_run_without_one_gains_it_by_an_option(self) -> None:
        out = self.job.root / "without"
        ended = self.job.command("export", "--run", self.job.run_directory, "--subject", "transfer", "--recall-cache", "0",
                                 "--out", out)
        self.assertEqual(ended.code, 0, ended)
        without = load(out, dtype=torch.float32)
        self.assertEqual(json.loads((out / "config.json").read_text())["hedgerow"]["attention"]["recall_cache"], 0)
        difference = (without(self.ids, use_cache=False).logits - self.model(self.ids, use_cache=False).logits).abs().max()
        self.assertGreater(float(difference), TOLERANCE, "the cache changes nothing")
        words = ["generate", "--run", self.job.run_directory, "--subject", "transfer", "--json", "--max-new-tokens", "40",
                 *PROMPTS]
        with_it, told, alone = (
            [json.loads(line)["ids"] for line in self.job.command(*words, *more).out.splitlines()]
            for more in ((), ("--recall-cache", "16"), ("--recall-cache", "0")))
        self.assertEqual(with_it, told)
        self.assertNotEqual(with_it, alone)
        merged = self.job.root / "merged"  # the run's last student, whose LoRA a worker merges first
        ended = self.job.command("export", "--run", self.job.run_directory, "--recall-cache", "8", "--out", merged)
        self.assertEqual(ended.code, 0, ended)
        self.assertEqual(json.loads((merged / "config.json").read_text())["hedgerow"]["attention"]["recall_cache"], 8)


class WithARecallCacheOfASlidingWindow(ExportParity, unittest.TestCase):
    attention = {"window": "sliding", "recall_cache": 8, "linear_cap": 20}


class WithoutSinksAndAKeyMapAQueryHead(ExportParity, unittest.TestCase):
    """LoLCATs' form, which imports and the exports of earlier builds have."""

    attention = {"window": "terraced", "num_sinks": 0, "key_maps": "query_head", "bias": True}


class PositiveRandom(ExportParity, unittest.TestCase):
    attention = {"feature_map": "positive_random", "start": "orthogonal_chi", "feature_dim": 64, "negation": False, "bias": False}


class Olmo2(WithAnAdapter, unittest.TestCase):
    """Norms behind attention and MLP, and over the whole width of q and k; features exp(t x)."""

    family = {"model_type": "olmo2"}
    attention = {"feature_map": "exp", "feature_dim": 16, "negation": False, "bias": False, "temperature": 1.5}


class SmolLm3(WithAnAdapter, unittest.TestCase):
    """Layers without RoPE, the second and the fourth; features elu + 1 of a projection."""

    family = {"model_type": "smollm3", "no_rope_layer_interval": 2}
    attention = {"feature_map": "projected_elu_plus_one", "feature_dim": 64, "negation": False}


class Taylor(ExportParity, unittest.TestCase):
    attention = {"feature_map": "taylor", "feature_dim": 1 + 64 + 64 * 65 // 2, "negation": False, "bias": False}


if __name__ == "__main__":
    unittest.main()
