"""convert_lolcats.py against files that torch.save writes: layouts, strictness, hostile pickles.

Catches: a half-empty checkpoint taken for whole, local layer numbers left local, a bias spread over the wrong axis, code
run from a pickle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from collections import OrderedDict
from pathlib import Path

import support

support.require("torch", "numpy", "safetensors")

import torch
from safetensors.torch import load_file

LAYERS, HEADS, KV_HEADS, HEAD_DIM, FEATURES, HIDDEN, RANK = 5, 4, 2, 16, 6, 48, 3


class Hostile:
    def __reduce__(self):
        return os.system, ("true",)


class Lolcats(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "teacher").mkdir()
        (self.root / "teacher" / "config.json").write_text(json.dumps(
            {**support.TINY, "num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "num_attention_heads": HEADS,
             "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}))
        torch.manual_seed(support.SEED)

    def maps(self, layers=range(LAYERS), prefix="model.", bias=False) -> OrderedDict:
        state = OrderedDict()
        for layer in layers:
            for name in ("feature_map_q", "feature_map_k"):
                state[f"{prefix}layers.{layer}.self_attn.{name}.mlp.layer"] = torch.randn(HEADS, HEAD_DIM, FEATURES).bfloat16()
                if bias:
                    state[f"{prefix}layers.{layer}.self_attn.{name}.mlp.bias"] = torch.randn(1, HEADS, 1, 1).bfloat16()
            state[f"{prefix}layers.{layer}.self_attn.window_factors"] = torch.randn(1, HEADS, 1, 1).bfloat16()
        return state

    def lora(self) -> OrderedDict:
        shapes = {"q_proj": (HEADS * HEAD_DIM, HIDDEN), "k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
                  "v_proj": (KV_HEADS * HEAD_DIM, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD_DIM)}
        state = OrderedDict()
        for layer in range(LAYERS):
            for module, (out, width) in shapes.items():
                base = f"base_model.model.model.layers.{layer}.self_attn.{module}"
                state[base + ".lora_A.default.weight"] = torch.randn(RANK, width).bfloat16()
                state[base + ".lora_B.default.weight"] = torch.randn(out, RANK).bfloat16()
        return state

    def save(self, value, name: str = "model.pt") -> Path:
        torch.save(value, self.root / name)
        return self.root / name

    def run_program(self, *arguments) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, support.HUGGINGFACE / "convert_lolcats.py", *map(str, arguments)],
                              capture_output=True, text=True, timeout=60)

    def read(self, *files, extra=()) -> subprocess.CompletedProcess:
        pts = [argument for file in files for argument in ("--pt", file)]
        return self.run_program("read", *pts, "--model", self.root / "teacher", "--out", self.root / "out", *extra)

    def assert_refused(self, value, *words: str, extra=()) -> None:
        done = self.read(self.save(value), extra=extra)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_a_stage_one_file_becomes_feature_maps_in_fp32(self):
        state = self.maps()
        done = self.read(self.save({"model_state_dict": state, "step": 7, "distill/eval/loss": 0.5}))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["feature_map"], {"projected_dim": 6, "bias": False, "window_factors": True})
        found = load_file(self.root / "out" / "feature_maps.safetensors")
        self.assertEqual(set(found), set(state))
        for name, tensor in state.items():
            self.assertTrue(torch.equal(found[name], tensor.float()), name)

    def test_a_flat_file_with_lora_becomes_maps_and_a_peft_adapter(self):
        lora = self.lora()
        done = self.read(self.save(OrderedDict({**self.maps(prefix="base_model.model.model."), **lora})))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["lora"]["alpha"], 2 * RANK)
        adapter = load_file(self.root / "out" / "adapter" / "adapter_model.safetensors")
        self.assertEqual(len(adapter), len(lora))
        name = "base_model.model.model.layers.3.self_attn.k_proj.lora_B"
        self.assertTrue(torch.equal(adapter[name + ".weight"], lora[name + ".default.weight"].float()))
        config = json.loads((self.root / "out" / "adapter" / "adapter_config.json").read_text())
        self.assertEqual((config["r"], config["target_modules"]), (RANK, ["q_proj", "k_proj", "v_proj", "o_proj"]))

    def test_blocks_with_local_numbers_are_put_where_their_names_say(self):
        first, second = self.maps(range(3)), self.maps(range(2))
        files = (self.save({"model_state_dict": first}, "dl-s=0-in=0-out=3_distill.pt"),
                 self.save({"model_state_dict": second}, "dl-s=0-in=3-out=5_distill.pt"))
        self.assertEqual((done := self.read(*files)).returncode, 0, done.stderr)
        found = load_file(self.root / "out" / "feature_maps.safetensors")
        self.assertTrue(torch.equal(found["model.layers.4.self_attn.feature_map_k.mlp.layer"],
                                    second["model.layers.1.self_attn.feature_map_k.mlp.layer"].float()))
        plain = (self.save(first, "a.pt"), f"{self.save(second, 'b.pt')}@3")
        self.assertEqual(self.read(*plain).returncode, 0)

    def test_a_scalar_bias_is_spread_over_the_features(self):
        state = self.maps(bias=True)
        self.assertEqual(self.read(self.save(state)).returncode, 0)
        name = "model.layers.2.self_attn.feature_map_q.mlp.bias"
        found = load_file(self.root / "out" / "feature_maps.safetensors")[name]
        self.assertTrue(torch.equal(found, state[name].float().reshape(HEADS, 1).expand(HEADS, FEATURES)))

    def test_softmax_layers_need_no_maps(self):
        state = self.maps([0, 1, 3, 4])
        self.assertEqual(self.read(self.save(state), extra=("--softmax-layers", "2")).returncode, 0)
        self.assert_refused(state, "layer 2", "feature_map_q.mlp.layer is missing")

    def test_missing_surplus_and_misshaped_tensors_are_named(self):
        missing = self.maps()
        del missing["model.layers.3.self_attn.window_factors"]
        self.assert_refused(missing, "layer 3", "window_factors is missing")
        self.assert_refused(self.maps(range(6)), "surplus", "layer 5", "has 5 layers")
        self.assert_refused({**self.maps(), "model.norm.weight": torch.ones(4)}, "surplus tensor 'model.norm.weight'")
        self.assert_refused({**self.maps(), "model.layers.0.self_attn.rotary.inv": torch.ones(4)}, "surplus", "rotary.inv")
        self.assert_refused({**self.maps(), "model.layers.1.self_attn.window_factors": torch.ones(1, 2, 1, 1)},
                            "layer 1 window_factors", "expected [1, 4, 1, 1], found [1, 2, 1, 1]")
        lora = self.lora()
        del lora["base_model.model.model.layers.4.self_attn.v_proj.lora_B.default.weight"]
        self.assert_refused({**self.maps(), **lora}, "layer 4", "v_proj.lora_B is missing")
        self.assert_refused({**self.maps(), "model.layers.0.self_attn.window_factors": torch.full((1, 4, 1, 1), float("nan"))},
                            "not finite")

    def test_code_in_a_pickle_is_refused_and_damage_is_named(self):
        self.assert_refused({"model_state_dict": Hostile()}, "posix.system", "refused")
        path = self.save(self.maps())
        path.write_bytes(path.read_bytes()[:500])
        done = self.read(path)
        self.assertEqual((done.returncode, "truncated" in done.stderr), (2, True), done.stderr)
        self.assertIn("no such file", self.read(self.root / "none.pt").stderr)

    def test_reading_agrees_with_torch_load_for_views_and_dtypes(self):
        support.add_huggingface_to_path()
        from torch_pickle import load_tensors
        base = torch.randn(6, 8)
        state = {"a": base[1:4, ::2], "b": base.t(), "c": torch.arange(5), "d": torch.randn(3).half(),
                 "e": torch.nn.Parameter(torch.randn(2, 2)), "f": torch.randn(4).double(), "g": torch.zeros(0, 3)}
        path = self.save(state)
        expected = torch.load(path, weights_only=True)
        for name, tensor in load_tensors(path).items():
            self.assertEqual(tensor.bits.tolist(), expected[name].detach().tolist(), name)

    def test_writing_and_reading_again_gives_the_same_bytes(self):
        self.assertEqual(self.read(self.save(OrderedDict({**self.maps(bias=True), **self.lora()}))).returncode, 0)
        out, first = self.root / "out", (self.root / "out" / "feature_maps.safetensors").read_bytes()
        adapter = (out / "adapter" / "adapter_model.safetensors").read_bytes()
        flat, blocks = self.root / "flat.pt", []
        done = self.run_program("write", "--student", out, "--adapter", out / "adapter", "--out", flat)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight",
                      torch.load(flat, weights_only=True))
        for begin, count in ((0, 3), (3, 2)):
            blocks.append(self.root / f"x-in={begin}-out={begin + count}_distill.pt")
            self.run_program("write", "--student", out, "--layout", "block", "--first-layer", begin, "--num-layers", count,
                             "--out", blocks[-1])
        self.assertEqual(self.read(flat).returncode, 0)
        self.assertEqual((out / "feature_maps.safetensors").read_bytes(), first)
        self.assertEqual((out / "adapter" / "adapter_model.safetensors").read_bytes(), adapter)
        self.assertEqual((done := self.read(*blocks)).returncode, 0, done.stderr)
        self.assertEqual((out / "feature_maps.safetensors").read_bytes(), first)
        (out / "adapter" / "trained_parameters.safetensors").write_bytes(b"")
        done = self.run_program("write", "--student", out, "--adapter", out / "adapter", "--out", flat)
        self.assertEqual(done.returncode, 2)
        self.assertIn("trained more than LoRA", done.stderr)


if __name__ == "__main__":
    unittest.main()
