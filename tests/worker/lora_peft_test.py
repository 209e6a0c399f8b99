"""LoRA adapters between hedgerow-worker and PEFT, both ways, on a tiny random model.

An adapter that our finetune wrote opens in PEFT with every tensor in its place; one that PEFT wrote is merged by
`hedgerow-worker merge` to the weights that PEFT's own merge gives, but for one rounding to bf16.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

try:
    import h5py
    import numpy
    import peft
    import torch
    import transformers
    import xxhash
    from safetensors.torch import load_file, save_file
except ImportError as missing:
    raise unittest.SkipTest(f"{missing}; deploy/setup --tests installs the packages of these tests") from None

WORKER = Path(os.environ["HEDGEROW_BIN"]) / "hedgerow-worker"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LAYERS, HEADS, HEAD_DIM, SEQ_LEN, VOCABULARY = 2, 4, 16, 24, 97

RECIPE = """
seed = 3
[model]
path = "{model}"
[data.transfer]
seq_len = 24
sources = [{{ path = "text.txt" }}]
[data.finetune]
seq_len = 24
sources = [{{ path = "text.txt" }}]
[attention]
feature_dim = 16
bias = false
window_size = 8
[plan]
compute_dtype = "fp32"
[finetune]
rank = 4
alpha = 8.0
max_steps = 3
validate_every = 0    # the last adapter is published: on random tokens no step is better than none
sequences_per_step = 2
ranks = 1
target_modules = {targets}
learning_rate = 0.01
"""


def tiny_model(directory: Path) -> None:
    torch.manual_seed(4)
    config = transformers.LlamaConfig(
        hidden_size=HEADS * HEAD_DIM, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
        pad_token_id=None, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)


def write_tokens(path: Path) -> None:
    ids = numpy.random.default_rng(5).integers(0, VOCABULARY, (6, SEQ_LEN), dtype=numpy.int32)
    mask = numpy.ones(ids.shape, numpy.uint8)
    starts = numpy.zeros(ids.shape, numpy.uint8)
    digest = xxhash.xxh3_128()
    for array in (ids, mask, starts):
        digest.update(array.tobytes())
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["input_ids"], file["loss_mask"], file["document_starts"] = ids, mask, starts
        for key, value in {"hedgerow_format": "tokens/1", "num_train": 4, "vocab_size": VOCABULARY,
                           "tokenizer_hash": "", "sources": "[]", "content_hash": digest.hexdigest()}.items():
            file.attrs[key] = value


def write_student(directory: Path, model: Path, fingerprint: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(6)
    maps = {}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.self_attn."
        for name in ("feature_map_q", "feature_map_k"):
            maps[f"{prefix}{name}.mlp.layer"] = 0.3 * torch.randn(HEADS, HEAD_DIM, 8, generator=generator)
        maps[f"{prefix}window_factors"] = torch.full((1, HEADS, 1, 1), -2.0)
    save_file(maps, directory / "feature_maps.safetensors")
    attention = {"feature_map": "hedgehog_softmax", "negation": True, "feature_dim": 16, "bias": False,
                 "start": "orthogonal", "window": "terraced", "window_size": 8, "window_factor": -2.0,
                 "train_window_factor": True}
    (directory / "hedgerow.json").write_text(json.dumps(
        {"format": "student/1", "teacher": {"path": str(model), "fingerprint": fingerprint}, "attention": attention,
         "softmax_layers": [], "layers": []}))


def worker(*arguments: object, fails: bool = False) -> str:
    done = subprocess.run([WORKER, *map(str, arguments)], capture_output=True, text=True)
    if (done.returncode != 0) != fails:
        raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stderr}")
    return done.stderr


class LoraPeftTest(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = Path(temporary.name)
        self.model = self.directory / "model"
        tiny_model(self.model)

    def base(self) -> transformers.PreTrainedModel:
        return transformers.AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)

    def test_an_adapter_that_we_wrote_opens_in_peft(self) -> None:
        run = self.directory / "run"
        write_tokens(run / "tokens" / "finetune.h5")
        (run / "run.toml").write_text(RECIPE.format(model=self.model, targets=json.dumps(TARGETS)))
        student = run / "student" / "t1"
        command = ("finetune", "--run", run, "--student", "student/t1", "--token", 2, "--threads", 1)
        # The refusal of a student of another teacher names the fingerprint that would be right.
        write_student(student, self.model, "of another teacher")
        message = worker(*command, fails=True)
        found = re.search(r"but \S+ has ([0-9a-f]+)", message)
        self.assertIsNotNone(found, message)
        write_student(student, self.model, found.group(1))
        worker(*command)

        adapter = run / "adapter" / "t2"
        ours = load_file(adapter / "adapter_model.safetensors")
        self.assertEqual(len(ours), LAYERS * len(TARGETS) * 2)
        opened = peft.PeftModel.from_pretrained(self.base(), str(adapter))
        theirs = peft.get_peft_model_state_dict(opened)
        self.assertEqual(sorted(theirs), sorted(ours))
        for name, tensor in ours.items():
            self.assertTrue(torch.equal(theirs[name], tensor), name)
        self.assertEqual(opened.peft_config["default"].r, 4)
        self.assertEqual(opened.peft_config["default"].lora_alpha, 8)
        ids = torch.arange(10)[None]
        with torch.no_grad():
            changed = (opened(ids).logits - self.base()(ids).logits).abs().max().item()
        self.assertGreater(changed, 1e-4, "the adapter changes nothing: it was not applied")

    def test_merging_an_adapter_that_peft_wrote_gives_pefts_weights(self) -> None:
        config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=TARGETS, task_type="CAUSAL_LM")
        model = peft.get_peft_model(self.base(), config)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
        adapter, out = self.directory / "adapter", self.directory / "merged"
        model.save_pretrained(adapter)
        worker("merge", "--model", self.model, "--adapter", adapter, "--out", out)
        expected = model.merge_and_unload().state_dict()
        before, merged = load_file(self.model / "model.safetensors"), load_file(out / "model.safetensors")
        self.assertEqual(sorted(merged), sorted(before))
        num_changed = 0
        for name, tensor in merged.items():
            self.assertEqual(tensor.dtype, torch.bfloat16)
            num_changed += not torch.equal(tensor, before[name])
            error = (tensor.float() - expected[name]).abs() / (expected[name].abs() + 1e-4)
            self.assertLessEqual(error.max().item(), 1 / 256, name)  # one rounding to 8 bits
        self.assertEqual(num_changed, LAYERS * len(TARGETS))
        worker("merge", "--model", self.model, "--adapter", adapter, "--out", out, fails=True)  # it holds weights now
