"""An export by hedgerow's operators against the same export in plain PyTorch: one set of logits, whoever computes them.

Catches: an attention setting that the operators are not told, a state whose layout differs between the two, padding or beams
that reach a state by another way, gradients lost through a state, a choice that nobody can see.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import support

support.require("torch", "transformers", "safetensors")
LIBRARY = support.operators_library()

import torch  # noqa: E402
from modeling_test import DEFAULT, LAYOUTS, MAPS, ROWS, make_model  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.testing import assert_close  # noqa: E402

CALLED = ("hybrid_attention", "prefill_state", "decode_step")
REAL = os.environ.get("HEDGEROW_TEST_MODEL")


def by_operators(model, yes: bool):
    """The same model, told what to compute with."""
    for layer in model.model.layers:
        layer.self_attn.by_operators = yes and not layer.self_attn.softmax
    return model


class Calls:
    """Counts what the model asks of the operators."""

    def __init__(self, model):
        self.count = dict.fromkeys(CALLED, 0)
        self.module = sys.modules[type(model.model.layers[0].self_attn).__module__]

    def __enter__(self):
        self.patches = [mock.patch.object(self.module, name, self.counted(name, operator))
                        for name, operator in zip(("hybrid_by_operators", "prefill_by_operators", "decode_by_operators"), CALLED)]
        for patch in self.patches:
            patch.start()
        return self.count

    def __exit__(self, *_):
        for patch in self.patches:
            patch.stop()

    def counted(self, name, operator):
        function = getattr(self.module, name)

        def call(*arguments):
            self.count[operator] += 1
            return function(*arguments)
        return call


class WithOperators(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(mock.patch.dict(os.environ, HEDGEROW_OPS=str(LIBRARY)))

    def models(self):
        cases = [(layout, softmax_layers, {}) for layout in LAYOUTS for softmax_layers in ((), (1,))]
        # Without a window and a layer only num_heads tells the query heads.
        cases += [("none", (), {"feature_map": "elu_plus_one"})]
        cases += [("terraced", (), spec) for spec in MAPS[1:] if spec["feature_map"] != "identity"]
        cases += [(layout, (), {**DEFAULT, "bias": True}) for layout in ("sliding", "terraced")]
        cases += [("terraced", (1,), {**DEFAULT, "num_sinks": 8}), ("none", (), {"key_maps": "kv_head"})]
        cases += [("terraced", (), {**DEFAULT, "bias": True, "recall_cache": 6, "linear_cap": 7}), ("sliding", (1,), {"recall_cache": 3}),
                  ("sliding", (), {**DEFAULT, "linear_cap": 7})]
        for layout, softmax_layers, spec in cases:
            dim = 12 if ROWS[spec.get("feature_map", "hedgehog_softmax")].projection else 16
            with self.subTest(layout=layout, softmax_layers=softmax_layers, **spec), tempfile.TemporaryDirectory() as directory:
                attention = {"window": layout, "window_size": 8, "feature_dim": dim, **spec}
                yield make_model(directory, attention, softmax_layers)

    @torch.no_grad()
    def test_the_full_forward_gives_the_same_logits(self):
        for model in self.models():
            ids = torch.randint(3, 97, (3, 45))
            mask = torch.ones_like(ids)
            mask[0, :9], mask[1, 30:] = 0, 0
            with Calls(model) as calls:
                found = model(ids, attention_mask=mask, use_cache=False).logits
            self.assertGreater(calls["hybrid_attention"], 0)
            expected = by_operators(model, False)(ids, attention_mask=mask, use_cache=False).logits
            assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_each_can_continue_the_others_state(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 40))
            mask = torch.ones_like(ids)
            mask[0, :5] = 0  # left-padded
            expected = by_operators(model, False)(ids, attention_mask=mask, use_cache=False).logits
            for start, middle, end in ((True, False, True), (False, True, False), (True, True, True)):
                cache, found = None, []
                for begin, stop, ours in [(0, 19, start), (19, 27, middle)] + [(t, t + 1, end ^ (t % 3 == 0)) for t in range(27, 40)]:
                    output = by_operators(model, ours)(ids[:, begin:stop], attention_mask=mask[:, :stop], past_key_values=cache,
                                                       use_cache=True)
                    cache = output.past_key_values
                    found.append(output.logits)
                found = torch.cat(found, 1)
                assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_generation_of_beams_and_of_ragged_prompts_is_the_same(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 14))
            mask = torch.ones_like(ids)
            mask[1, :6] = 0
            for beams in (1, 3):
                arguments = dict(attention_mask=mask, max_new_tokens=20, num_beams=beams, do_sample=False, eos_token_id=None,
                                 pad_token_id=2)
                with Calls(model) as calls:
                    found = by_operators(model, True).generate(ids, **arguments)
                self.assertGreater(calls["prefill_state"], 0)
                self.assertGreater(calls["decode_step"], 18)
                self.assertEqual(found.tolist(), by_operators(model, False).generate(ids, **arguments).tolist(),
                                 f"seed {support.SEED}, {beams} beams")

    def test_what_prefill_reads_is_on_the_cpu_wherever_the_model_is(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12}).model
        self.assertEqual(model._step((2, 5), None, None, torch.device("meta")).count_to_read.tolist(), [5, 5])
        mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
        for found in (mask, torch.ones_like(mask)):
            step = model._step((2, 5), found, None, torch.device("cpu"))
            self.assertEqual(step.count_to_read.tolist(), step.count.tolist())

    def test_gradients_are_the_same_and_go_through_a_state_in_plain_pytorch(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 33))
            found, expected = ({name: p.grad for name, p in self.learned(model, ids, ours).items()} for ours in (True, False))
            for name, gradient in expected.items():
                assert_close(found[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()), msg=name)
            with Calls(by_operators(model, True)) as calls:
                first = model(ids[:, :20], use_cache=True)
                second = model(ids[:, 20:21], past_key_values=first.past_key_values, use_cache=True)
            self.assertEqual(sum(calls.values()), 0, "a state by the operators would have no graph")
            self.assertIsNotNone(torch.autograd.grad(second.logits.sum(), model.model.layers[0].self_attn.v_proj.weight)[0])

    def learned(self, model, ids, ours):
        model.zero_grad()
        by_operators(model, ours)(ids, labels=ids, use_cache=False).loss.backward()
        return {name: p for name, p in model.named_parameters() if p.grad is not None}

    @torch.no_grad()
    def test_other_dtypes_and_empty_rows_go_by_plain_pytorch(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12})
            ids = torch.randint(3, 97, (2, 20))
            with Calls(model) as calls:
                model.double()(ids)
                model.float()(ids, attention_mask=torch.stack((torch.zeros(20), torch.ones(20))).long())
            self.assertEqual(sum(calls.values()), 0)

    @unittest.skipUnless(REAL, "HEDGEROW_TEST_MODEL names no model (tests/run sets it)")
    @torch.no_grad()
    def test_real_weights_in_both_windows(self):
        import json
        teacher = Path(REAL)
        config = {k: v for k, v in json.loads((teacher / "config.json").read_text()).items()
                  if k not in ("model_type", "architectures")}
        weights = {name: x.float() for file in teacher.glob("*.safetensors") for name, x in load_file(file).items()}
        for window, spec in (("sliding", {}), ("sliding", DEFAULT), ("terraced", DEFAULT)):
            with self.subTest(window=window, **spec), tempfile.TemporaryDirectory() as directory:
                model = make_model(directory, {"window": window, "window_size": 64, "feature_dim": 64, **spec}, config=config)
                missing, unexpected = model.load_state_dict(weights, strict=False)
                self.assertEqual(unexpected, [])
                self.assertTrue(all("feature_map" in name or "window_factors" in name or name == "lm_head.weight" for name in missing))
                ids = torch.randint(3, 49000, (1, 300))
                found = by_operators(model, True)(ids, use_cache=False).logits
                assert_close(found, by_operators(model, False)(ids, use_cache=False).logits, rtol=1e-4, atol=1e-3)
                cache = by_operators(model, True)(ids[:, :200], use_cache=True).past_key_values
                for t in range(200, 300):
                    output = model(ids[:, t:t + 1], past_key_values=cache, use_cache=True)
                    assert_close(output.logits[:, 0], found[:, t], rtol=1e-4, atol=1e-3)


class Choice(unittest.TestCase):
    """Which of the two it is, in fresh processes: nothing loaded before."""

    def says(self, **environment) -> tuple[str, str]:
        program = f"""
import sys, tempfile
sys.path.insert(0, {str(Path(__file__).parent)!r})
from transformers.utils import logging
logging.set_verbosity_info()
from modeling_test import make_model, torch
with tempfile.TemporaryDirectory() as directory:
    for _ in range(2):
        model = make_model(directory, {{"window": "sliding", "window_size": 8, "feature_dim": 12}})
print(model.model.layers[0].self_attn.by_operators, model(torch.ones(1, 9, dtype=torch.int64)).logits.shape)
import copy; copy.deepcopy(model)
"""
        kept = {name: value for name, value in os.environ.items() if name != "HEDGEROW_OPS"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300,
                              env={**kept, "OMP_NUM_THREADS": "1", **environment})
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line for line in done.stderr.splitlines() if "attention is computed" in line]
        self.assertEqual(len(lines), 1, done.stderr)
        return done.stdout.split()[0], lines[0]

    def test_it_is_said_once_and_is_as_asked(self):
        self.assertRegex(" ".join(self.says()), "False .*in plain PyTorch; HEDGEROW_OPS=")
        self.assertRegex(" ".join(self.says(HEDGEROW_OPS="off")), "False .*HEDGEROW_OPS=off asks")
        self.assertRegex(" ".join(self.says(HEDGEROW_OPS=str(LIBRARY))), "True .*by hedgerow's kernels")

    def test_a_library_that_does_not_load_is_named_and_the_model_still_runs(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as broken:
            found = " ".join(self.says(HEDGEROW_OPS=broken.name))
            self.assertRegex(found, f"False .*HEDGEROW_OPS={broken.name} cannot be loaded .*version of PyTorch")

    def test_a_library_that_is_not_there_is_said_to_be_absent(self):
        with tempfile.TemporaryDirectory() as directory:
            found = " ".join(self.says(HEDGEROW_OPS=f"{directory}/none.so"))
            self.assertRegex(found, f"False .*HEDGEROW_OPS={directory}/none.so: no such file, .*target hedgerow_ops")
            self.assertNotIn("version of PyTorch", found)


if __name__ == "__main__":
    unittest.main()
