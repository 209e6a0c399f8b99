"""The exported model's own files: definition, recurrence, padding, bodies. Tiny random models, no data needed.

Catches: a pair of tokens in both branches or in none, a state that depends on how the text was split, chunk borders
anchored at padding, a body that differs from transformers', RoPE scaling read from the wrong key.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import unittest
from pathlib import Path

import support

support.require("torch", "transformers")

import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

transformers_logging.disable_progress_bar()
LAYOUTS = ("sliding", "terraced", "none")
DEFAULT = {"num_sinks": 4, "key_maps": "kv_head"}  # of a recipe
ROWS = support.feature_maps()
MAPS = tuple({"feature_map": word, "negation": negation, "bias": row.projection and not row.negation and not row.one_draw,
              **({"temperature": 1.5} if row.temperature else {})}
             for word, row in ROWS.items() for negation in ((True, False) if row.negation else (False,)))


def make_model(directory: str, attention: dict, softmax_layers=(), config=None, body="llama", dtype=torch.float32):
    """A random model through the real loading path: write, then AutoModelForCausalLM.from_pretrained."""
    path = Path(directory) / "export"
    support.write_export(path, {**support.TINY, **(config or {})}, attention, list(softmax_layers), body)
    torch.manual_seed(support.SEED)
    from transformers import AutoConfig
    loaded = AutoConfig.from_pretrained(path, trust_remote_code=True)
    model = AutoModelForCausalLM.from_config(loaded, trust_remote_code=True, dtype=dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn_like(parameter) * (0.8 if "feature_map" in name else 0.15))
    return model


def quadratic_attention(layer, q, k, v) -> torch.Tensor:
    """The definition with T x T tensors, from the equations alone. q [B, H, T, D], k, v [B, G, T, D], fp64."""
    heads, length = q.shape[1], q.shape[2]
    shares = heads // layer.feature_map_k.mlp.layer.shape[0] if layer.feature_map_k.mlp is not None else 1
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    phi_k = layer.feature_map_k(k[:, ::shares]).repeat_interleave(shares, 1)
    width = layer.window_size
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    if layer.window == "sliding":
        window = (j <= i) & (j > i - width)
    elif layer.window == "terraced":
        window = (j <= i) & (j // width >= i // width - 1)
    else:
        window = torch.zeros(length, length, dtype=torch.bool)
    window = window | ((j < layer.num_sinks) & (j <= i))
    linear = (layer.feature_map_q(q) @ phi_k.transpose(2, 3)).masked_fill(window | (j > i), 0)
    if layer.linear_cap:
        linear = linear * (layer.linear_cap / (~window & (j <= i)).sum(-1, keepdim=True).double()).clamp(max=1)
    if layer.window == "none":
        return linear @ v / (linear.sum(-1, keepdim=True) + 1e-12)
    s = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(~window, -math.inf)
    p = torch.sigmoid(layer.window_factors.to(q.dtype)) * (s - s.amax(-1, keepdim=True)).exp()
    return (p + linear) @ v / (p + linear).sum(-1, keepdim=True)


class Attention(unittest.TestCase):
    def test_chunks_give_the_quadratic_definition_for_every_map_and_layout(self):
        for layout in LAYOUTS:
            for spec in MAPS:
                dim = 12 if ROWS[spec["feature_map"]].projection else 16
                with self.subTest(layout=layout, **spec), tempfile.TemporaryDirectory() as directory:
                    attention = {"window": layout, "window_size": 8, "feature_dim": dim, **spec}
                    layer = make_model(directory, attention).double().model.layers[0].self_attn
                    self.assert_definition(layer, (1, 7, 8, 9, 16, 17, 41), positive=not ROWS[spec["feature_map"]].positive)

    def test_chunks_give_it_with_sinks_and_key_maps_of_kv_heads(self):
        cases = [(layout, sinks, maps) for layout in ("sliding", "terraced") for sinks in (0, 1, 3, 8)
                 for maps in ("query_head", "kv_head")] + [("none", 0, "kv_head")]
        for layout, sinks, maps in cases:
            for spec in ({}, {"bias": True}, {"feature_map": "elu_plus_one", "feature_dim": 16},
                         {"linear_cap": 5 if layout != "none" else 0}):
                attention = {"window": layout, "window_size": 8, "feature_dim": 12, "num_sinks": sinks, "key_maps": maps, **spec}
                with self.subTest(**attention), tempfile.TemporaryDirectory() as directory:
                    layer = make_model(directory, attention).double().model.layers[0].self_attn
                    self.assert_definition(layer, (1, 2, 8, 9, 17, 41))

    def assert_definition(self, layer, lengths, positive=False):
        for length in lengths:
            q, k, v = (torch.randn(2, n, length, 16, dtype=torch.float64) for n in (4, 2, 2))
            if positive:
                q, k = q.abs(), k.abs()  # features must be positive for the denominator
            found, _ = layer._chunked(q, k, v, None, torch.zeros(2, dtype=torch.int64))
            assert_close(found, quadratic_attention(layer, q, k, v), rtol=1e-9, atol=1e-9)


class FeatureMapsOfTheExponential(unittest.TestCase):
    def maps(self, **spec):
        """phi_q and phi_k of a layer, and random q and k [1, 4, 9, 16] in fp64."""
        with tempfile.TemporaryDirectory() as directory:
            layer = make_model(directory, {"window": "none", **spec}).double().model.layers[0].self_attn
        return layer.feature_map_q, layer.feature_map_k, *torch.randn(2, 1, 4, 9, 16, dtype=torch.float64)

    @torch.no_grad()
    def test_taylor_features_multiply_to_the_polynomial_of_the_score(self):
        phi_q, phi_k, q, k = self.maps(feature_map="taylor")
        score = q @ k.transpose(2, 3) / 4
        assert_close(phi_q(q) @ phi_k(k).transpose(2, 3), 1 + score + score**2 / 2, rtol=1e-10, atol=1e-10)
        self.assertEqual(phi_q(q).shape[-1], math.comb(18, 2))

    @torch.no_grad()
    def test_positive_random_features_are_exponentials_and_a_querys_largest_is_fixed(self):
        phi_q, phi_k, q, k = self.maps(feature_map="positive_random", feature_dim=24)
        exponent = torch.einsum("bhtd,hdf->bhtf", k / 2, phi_k.mlp.layer) - (k / 2).pow(2).sum(-1, keepdim=True) / 2
        assert_close(phi_k(k), exponent.exp() / math.sqrt(24), rtol=1e-10, atol=0)
        z = torch.einsum("bhtd,hdf->bhtf", q / 2, phi_q.mlp.layer)
        assert_close(phi_q(q), (z - z.amax(-1, keepdim=True)).exp() / math.sqrt(24), rtol=1e-10, atol=0)


class Generation(unittest.TestCase):
    def models(self):
        cases = [(layout, softmax_layers, {}) for layout in LAYOUTS for softmax_layers in ((), (1,))]
        cases += [("terraced", (), {"feature_map": kind}) for kind in ("positive_random", "taylor")]
        cases += [(layout, (), DEFAULT) for layout in ("sliding", "terraced")]
        cases += [("terraced", (1,), {**DEFAULT, "num_sinks": 8}), ("sliding", (), {**DEFAULT, "bias": True, "num_sinks": 8}),
                  ("none", (), {"key_maps": "kv_head"})]
        cases += [(layout, (), {**DEFAULT, "linear_cap": 6}) for layout in ("sliding", "terraced")]
        for layout, softmax_layers, spec in cases:
            with self.subTest(layout=layout, softmax_layers=softmax_layers, **spec), \
                    tempfile.TemporaryDirectory() as directory:
                attention = {"window": layout, "window_size": 8, "feature_dim": 12, **spec}
                yield make_model(directory, attention, softmax_layers)

    @torch.no_grad()
    def test_token_by_token_equals_the_full_forward(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 45))
            expected = model(ids, use_cache=False).logits
            cache, found = None, []
            for t in range(ids.shape[1]):
                output = model(ids[:, t:t + 1], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                found.append(output.logits)
            assert_close(torch.cat(found, 1), expected, rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_prefill_split_anywhere_equals_the_full_forward(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 40))
            expected = model(ids, use_cache=False).logits
            for cuts in ((1, 2), (7, 9), (8, 16), (15, 17, 18), (16, 33), (24, 39)):
                cache, found, begin = None, [], 0
                for end in (*cuts, 40):
                    output = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
                    cache, begin = output.past_key_values, end
                    found.append(output.logits)
                assert_close(torch.cat(found, 1), expected, rtol=1e-4, atol=1e-4, msg=lambda m: f"cuts {cuts}: {m}")

    @torch.no_grad()
    def test_a_ragged_batch_equals_single_prompts(self):
        for model in self.models():
            lengths = (1, 5, 8, 13, 30)
            prompts = [torch.randint(3, 97, (n,)) for n in lengths]
            for side in ("left", "right"):
                ids, mask = torch.full((5, 30), 2), torch.zeros(5, 30, dtype=torch.int64)
                for row, prompt in enumerate(prompts):
                    place = slice(30 - len(prompt), 30) if side == "left" else slice(0, len(prompt))
                    ids[row, place], mask[row, place] = prompt, 1
                logits = model(ids, attention_mask=mask, use_cache=False).logits
                for row, prompt in enumerate(prompts):
                    alone = model(prompt[None], use_cache=False).logits[0]
                    assert_close(logits[row][mask[row].bool()], alone, rtol=1e-4, atol=1e-4)
            batch = model.generate(torch.tensor(self.left_pad(prompts)), attention_mask=self.left_mask(prompts),
                                   max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=2)
            for row, prompt in enumerate(prompts):
                alone = model.generate(prompt[None], attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                                       max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=2)
                self.assertEqual(batch[row, 30:].tolist(), alone[0, len(prompt):].tolist(), f"seed {support.SEED}")

    @torch.no_grad()
    def test_decode_steps_across_the_windows_border_of_a_left_padded_batch_equal_the_forward_of_each_row(self):
        specs = [(layout, kept, sinks, maps) for layout, kept, sinks, maps in itertools.product(
            LAYOUTS, ((), (1,)), (0, 4), ("query_head", "kv_head")) if layout != "none" or not sinks]
        for layout, kept, sinks, maps in specs:
            attention = {"window": layout, "window_size": 8, "feature_dim": 12, "num_sinks": sinks, "key_maps": maps}
            with self.subTest(kept=kept, **attention), tempfile.TemporaryDirectory() as directory:
                # The body's own window, of the layers that kept softmax, is crossed too.
                model = make_model(directory, attention, kept, {"sliding_window": 12}, "mistral")
                lengths, steps = (1, 3, 7, 8, 9, 15, 16), 11
                rows = [torch.randint(3, 97, (n + steps,)) for n in lengths]
                longest = max(lengths) + steps
                ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0), value=2) for row in rows])
                mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows]).long()
                cache, found, begin = None, [], 0
                for end in range(longest - steps, longest + 1):
                    output = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
                    cache, begin = output.past_key_values, end
                    found.append(output.logits)
                found = torch.cat(found, 1)
                whole = model(ids, attention_mask=mask, use_cache=False).logits
                for row, tokens in enumerate(rows):
                    alone = model(tokens[None], use_cache=False).logits[0]
                    for logits in (found, whole):
                        assert_close(logits[row, -len(tokens):], alone, rtol=1e-4, atol=3e-5)
                # What generate() leaves goes on too: its last token was not computed yet.
                prompt = longest - steps
                made = model.generate(ids[:, :prompt], attention_mask=mask[:, :prompt], max_new_tokens=steps, do_sample=False,
                                      eos_token_id=None, return_dict_in_generate=True)
                mask = torch.cat((mask[:, :prompt], torch.ones(len(rows), steps, dtype=torch.int64)), dim=1)
                output = model(made.sequences[:, -1:], attention_mask=mask, past_key_values=made.past_key_values)
                for row, length in enumerate(lengths):
                    alone = model(made.sequences[row:row + 1, prompt - length:], use_cache=False).logits[0, -1]
                    assert_close(output.logits[row, -1], alone, rtol=1e-4, atol=3e-5)

    @torch.no_grad()
    def test_one_new_column_may_be_padding_in_some_rows(self):
        for model in self.models():
            ids, mask = torch.randint(3, 97, (2, 25)), torch.ones(2, 25, dtype=torch.int64)
            mask[0, 20:] = 0
            cache = model(ids[:, :20], attention_mask=mask[:, :20], use_cache=True).past_key_values
            for end in range(21, 26):
                logits = model(ids[:, end - 1:end], attention_mask=mask[:, :end], past_key_values=cache).logits
            assert_close(logits[1], model(ids[1:], use_cache=False).logits[0, -1:], rtol=1e-4, atol=1e-4)
            mask = torch.nn.functional.pad(mask, (0, 1), value=1)
            following = model(ids[:, 20:21], attention_mask=mask, past_key_values=cache)
            assert_close(following.logits[0], model(ids[:1, :21], use_cache=False).logits[0, -1:], rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_a_prefill_in_chunks_generates_the_same(self):
        prompts = [torch.randint(3, 97, (n,)) for n in (1, 5, 30)]
        given = dict(attention_mask=self.left_mask(prompts), max_new_tokens=12, do_sample=False, eos_token_id=None)
        for model in self.models():
            ids = torch.tensor(self.left_pad(prompts))
            self.assertEqual(model.generate(ids, prefill_chunk_size=7, **given).tolist(), model.generate(ids, **given).tolist())

    @staticmethod
    def left_pad(prompts):
        return [[2] * (30 - len(p)) + p.tolist() for p in prompts]

    @staticmethod
    def left_mask(prompts):
        return torch.tensor([[0] * (30 - len(p)) + [1] * len(p) for p in prompts])

    @torch.no_grad()
    def test_generation_with_the_cache_equals_generation_without(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 11))
            arguments = dict(max_new_tokens=25, do_sample=False, eos_token_id=None, pad_token_id=2)
            with_cache = model.generate(ids, use_cache=True, **arguments)
            without = model.generate(ids, use_cache=False, **arguments)
            self.assertEqual(with_cache.tolist(), without.tolist(), f"seed {support.SEED}")

    @torch.no_grad()
    def test_beam_search_reorders_the_cache(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12, **DEFAULT}, (1,))
            ids = torch.randint(3, 97, (2, 11))
            arguments = dict(max_new_tokens=12, num_beams=3, do_sample=False, eos_token_id=None, pad_token_id=2)
            self.assertEqual(model.generate(ids, use_cache=True, **arguments).tolist(),
                             model.generate(ids, use_cache=False, **arguments).tolist(), f"seed {support.SEED}")

    @torch.no_grad()
    def test_the_cache_does_not_grow(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12, **DEFAULT})
            sizes = []
            for length in (40, 400):
                cache = model(torch.randint(3, 97, (1, length)), use_cache=True).past_key_values
                sizes.append(sum(t.numel() for layer in cache.layers for t in vars(layer).values() if t is not None))
            self.assertEqual(sizes[0], sizes[1])

    @torch.no_grad()
    def test_later_tokens_never_change_earlier_logits(self):
        for model in self.models():
            ids = torch.randint(3, 97, (1, 33))
            changed = ids.clone()
            changed[0, 20] = (changed[0, 20] + 1) % 97
            before, after = (model(x, use_cache=False).logits[:, :20] for x in (ids, changed))
            self.assertTrue(torch.equal(before, after))

    @torch.no_grad()
    def test_loading_in_bf16_keeps_the_maps_in_fp32_and_saving_loads_back(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12, **DEFAULT})
            saved = Path(directory) / "saved"
            model.save_pretrained(saved)
            loaded = AutoModelForCausalLM.from_pretrained(saved, trust_remote_code=True, dtype=torch.bfloat16)
            for name, parameter in loaded.named_parameters():
                kept = "feature_map" in name or "window_factors" in name
                self.assertEqual(parameter.dtype, torch.float32 if kept else torch.bfloat16, name)
                assert_close(parameter.float(), model.get_parameter(name), rtol=0.01, atol=0.0)
            self.assertEqual(loaded.config.hidden_act, "silu")

    def test_without_trust_the_bodys_own_class_is_refused_and_never_computes_softmax_attention(self):
        for body in ("llama", "mistral", "qwen2", "qwen3"):
            with self.subTest(body=body), tempfile.TemporaryDirectory() as directory:
                model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12}, body=body)
                saved = Path(directory) / "saved"
                model.save_pretrained(saved)
                for arguments in ({}, {"trust_remote_code": False}, {"attn_implementation": "sdpa"}):
                    with self.assertRaisesRegex(KeyError, "hedgerow, which needs trust_remote_code=True"):
                        AutoModelForCausalLM.from_pretrained(saved, **arguments)

    def test_padding_between_tokens_is_refused(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "sliding", "window_size": 8, "feature_dim": 12})
            with self.assertRaisesRegex(ValueError, "padding between its tokens"):
                model(torch.ones(1, 4, dtype=torch.int64), attention_mask=torch.tensor([[1, 0, 1, 1]]))

    def test_foreign_cache_and_unknown_map_are_named(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "sliding", "window_size": 8, "feature_dim": 12})
            from transformers import DynamicCache
            with self.assertRaisesRegex(ValueError, "HedgerowCache, found DynamicCache"):
                model(torch.ones(1, 4, dtype=torch.int64), past_key_values=DynamicCache())
            for pattern, attention in (("feature_map is 'performer'", {"feature_map": "performer"}),
                                       ("key_maps is 'layer'; known: query_head, kv_head", {"key_maps": "layer"}),
                                       ("num_sinks is 9; a window of 8 tokens takes 0 to 8", {"window_size": 8, "num_sinks": 9}),
                                       ("linear_cap is -1; a window of 64 tokens takes 0 to", {"linear_cap": -1}),
                                       ("linear_cap is 9; a window of 0 tokens takes 0 to 0", {"linear_cap": 9, "window": "none",
                                                                                               "num_sinks": 0}),
                                       ("num_sinks is 4; a window of 0 tokens", {"window": "none", "num_sinks": 4})):
                with self.assertRaisesRegex(ValueError, pattern):
                    make_model(directory, attention)

    @torch.no_grad()
    def test_an_export_that_says_nothing_of_sinks_and_key_maps_has_none_and_one_a_query_head(self):
        with tempfile.TemporaryDirectory() as directory:
            attention = {"window": "sliding", "window_size": 8, "feature_dim": 12}
            silent = make_model(directory, attention)
            self.assertEqual(silent.model.layers[0].self_attn.feature_map_k.mlp.layer.shape, (4, 16, 6))
            ids = torch.randint(3, 97, (2, 33))
            expected = silent(ids, use_cache=False).logits
            told = make_model(directory, {**attention, "num_sinks": 0, "key_maps": "query_head"})
            self.assertTrue(torch.equal(told(ids, use_cache=False).logits, expected))
            sinks = make_model(directory, {**attention, "num_sinks": 4})
            assert_close(sinks(ids, use_cache=False).logits[:, :8], expected[:, :8])  # the window alone
            self.assertGreater(float((sinks(ids, use_cache=False).logits - expected)[:, 12:].abs().max()), 1e-2)


class SeveralDevices(unittest.TestCase):
    """Layers on two devices by accelerate's own hooks, as from_pretrained(device_map=...) sets them; the second is `meta`."""

    @torch.no_grad()
    def test_what_a_step_says_goes_with_the_hidden_states(self):
        import accelerate
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, {"window": "terraced", "window_size": 8, "feature_dim": 12}, (1,))
            ids, mask = torch.randint(3, 97, (2, 20)), torch.ones(2, 20, dtype=torch.long)
            mask[0, :5] = 0
            packed = torch.cat((torch.arange(9), torch.arange(11))).expand(2, 20)
            for second in ("cpu", "meta"):
                accelerate.hooks.remove_hook_from_submodules(model)
                places = {"": "cpu", "model.layers.1": second, "model.norm": second, "lm_head": second}
                for part in filter(None, places):
                    model.get_submodule(part).to(second)
                accelerate.hooks.attach_align_device_hook_on_blocks(
                    model, {part: torch.device(device) for part, device in places.items()},
                    offload={part: False for part in places if part}, skip_keys=model._skip_keys_device_placement)
                accelerate.hooks.remove_hook_from_module(model)  # it brings the logits back, which meta does not have
                for arguments in ({"attention_mask": mask}, {"position_ids": packed, "use_cache": False}):
                    with self.subTest(second, **dict.fromkeys(arguments)):
                        logits = model(ids, **arguments).logits
                        self.assertEqual((logits.device.type, logits.shape), (second, (2, 20, 97)))


class Bodies(unittest.TestCase):
    """With every layer kept softmax the model must be the teacher."""

    def assert_same(self, body: str, architecture: str, extra: dict):
        import transformers
        base = {**support.TINY, **extra}
        torch.manual_seed(support.SEED)
        teacher = getattr(transformers, architecture + "ForCausalLM")(
            getattr(transformers, architecture + "Config")(**base)).eval()
        with torch.no_grad():
            for parameter in teacher.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.2)
        with tempfile.TemporaryDirectory() as directory:
            written = {k: v for k, v in teacher.config.to_dict().items() if k not in ("model_type", "architectures")}
            ours = make_model(directory, {"window": "sliding"}, (0, 1), written, body)
            missing, unexpected = ours.load_state_dict(teacher.state_dict(), strict=False)
            self.assertEqual((missing, unexpected), ([], []))
            ids = torch.randint(3, 97, (2, 40))
            mask = torch.ones_like(ids)
            mask[0, :7] = 0
            with torch.no_grad():
                expected = teacher(ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits
                found = ours(ids, attention_mask=mask, use_cache=False).logits
            assert_close(found[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)

    def test_llama(self):
        self.assert_same("llama", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}})

    def test_llama_with_biases_and_tied_embeddings(self):
        self.assert_same("llama", "Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True})

    def test_llama_3_1_rope(self):
        self.assert_same("llama", "Llama", {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 5e3, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}})

    def test_linear_rope(self):
        self.assert_same("llama", "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0}})

    def test_mistral_with_its_window(self):
        self.assert_same("mistral", "Mistral", {"sliding_window": 16})

    def test_qwen2(self):
        self.assert_same("qwen2", "Qwen2", {})

    def test_qwen3(self):
        self.assert_same("qwen3", "Qwen3", {})

    def test_olmo2(self):
        self.assert_same("olmo2", "Olmo2", {})

    def test_smollm3_with_its_window_in_layers_without_rope(self):
        self.assert_same("smollm3", "SmolLM3", {"no_rope_layers": [1, 0], "use_sliding_window": True, "sliding_window": 16})


if __name__ == "__main__":
    unittest.main()
