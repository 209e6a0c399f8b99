"""The exact cache of keys that a state recalls worst (recall_cache). The oracle walks queries, rows and heads one by one.

Catches: a key in both branches or in none, a choice that depends on how a prompt was cut, on padding or on the batch, a key
that leaves the cache unseen, a score from the state after the choice, a gradient through the choice.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import unittest
from importlib import import_module
from unittest import mock

import support

support.require("torch", "transformers")

import torch
from modeling_test import make_model
from torch.testing import assert_close

W = 8
LAYOUTS = ("sliding", "terraced")
SPEC = {"window_size": W, "feature_dim": 12, "num_sinks": 4, "key_maps": "kv_head"}


class Reference:
    """The definition for one row and kv head: python lists of positions, sums key by key, a query at a time."""

    def __init__(self, layer, k, v, phi):
        """k, v [T, D]; phi [n, T, F], one for each key map of the kv head."""
        self.layer, self.k, self.v, self.phi, self.num = layer, k, v, phi, layer.recall_cache
        self.kept, self.folded, self.made = [], [], 0

    def score(self, j):
        total = 0.0
        for phi in self.phi:
            sums = torch.zeros(phi.shape[-1], self.v.shape[-1], dtype=phi.dtype)
            mass = torch.zeros(phi.shape[-1], dtype=phi.dtype)
            for t in self.folded:
                sums, mass = sums + torch.outer(phi[t], self.v[t]), mass + phi[t]
            recalled = (phi[j] @ sums) / max(float(phi[j] @ mass), 1e-12)
            total += float((self.v[j] - recalled).pow(2).sum())
        return total

    def choose(self):
        """The next choice: what it drops, a chunk's keys included, is folded."""
        chunk = [t for t in range(self.made * W, self.made * W + W) if t >= self.layer.num_sinks]
        candidates = sorted(self.kept + chunk)
        scores = {t: self.score(t) for t in candidates}
        self.kept = sorted(sorted(candidates, key=lambda t: (-scores[t], t))[:self.num])
        self.folded = self.folded + [t for t in candidates if t not in self.kept]
        self.made += 1

    def split(self, i):
        """Positions that query i sees by softmax and by the sums. Queries come in order."""
        sliding = self.layer.window == "sliding"
        while self.made < i // W - (0 if sliding else 1):
            self.choose()
        first = max(i - W + 1, 0) if sliding else max(i // W - 1, 0) * W
        before = max(first - self.layer.num_sinks, 1)
        self.share = min(1.0, self.layer.linear_cap / before) if self.layer.linear_cap else 1.0
        exact = set(range(first, i + 1)) | set(range(min(self.layer.num_sinks, i + 1))) | set(self.kept)
        linear = {t for t in self.folded if t < first}
        assert not exact & linear and exact | linear == set(range(i + 1)), (i, exact, linear)
        return sorted(exact), sorted(linear)


def reference(layer, q, k, v):
    """y [B, H, T, D] and the positions after the last query: lists [B][G]."""
    heads, groups, length = q.shape[1], k.shape[1], q.shape[2]
    y, positions = torch.zeros_like(q), []
    phi_q = layer.feature_map_q(q)
    phi_k = layer.feature_map_k(k.repeat_interleave(layer.key_heads // groups, 1))
    gate = torch.sigmoid(layer.window_factors.to(q.dtype))[0, :, 0, 0]
    for row in range(q.shape[0]):
        positions.append([])
        for group in range(groups):
            maps = layer.key_heads // groups
            one = Reference(layer, k[row, group], v[row, group], phi_k[row, group * maps:(group + 1) * maps])
            for i in range(length):
                exact, linear = one.split(i)
                for head in range(group * heads // groups, (group + 1) * heads // groups):
                    own = one.phi[(head - group * heads // groups) % maps]
                    scores = torch.stack([q[row, head, i] @ one.k[t] for t in exact]) / math.sqrt(q.shape[-1])
                    weights = (gate[head] * (scores - scores.max()).exp()).tolist()
                    weights += [one.share * float(phi_q[row, head, i] @ own[t]) for t in linear]
                    y[row, head, i] = sum(w * one.v[t] for w, t in zip(weights, exact + linear)) / sum(weights)
            positions[-1].append(one.kept)
    return y, positions


def make_layer(**attention):
    with tempfile.TemporaryDirectory() as directory:
        return make_model(directory, {**SPEC, **attention}).model.layers[0].self_attn


def module_of(layer, name):
    return import_module(type(layer).__module__.replace("attention_hedgerow", name))


def attend(layer, q, k, v, cuts=()):
    """y and the cache of a layer's attention, given the tokens in pieces."""
    cache, found = module_of(layer, "cache_hedgerow").HedgerowCache(1), []
    step = module_of(layer, "packing_hedgerow").whole_rows
    for begin, end in itertools.pairwise((0, *cuts, q.shape[2])):
        this = step(q.shape[0], end - begin, q.device)
        this.seen, this.one_each = this.seen + begin, end - begin == 1
        found.append(layer._hybrid_attention(*(x[:, :, begin:end] for x in (q, k, v)), this, cache))
    return torch.cat(found, 2), cache


def chosen(cache, layer_idx=0):
    return [[[t for t in group if t >= 0] for group in row] for row in cache.recalled(layer_idx).tolist()]


def random_qkv(length, batch=2, dtype=torch.float32):
    return tuple(torch.randn(batch, n, length, 16, dtype=dtype) for n in (4, 2, 2))


class Definition(unittest.TestCase):
    def check(self, length, dtype, tolerance, **spec):
        layer = make_layer(**spec).to(dtype)
        q, k, v = random_qkv(length, dtype=dtype)
        y, positions = reference(layer, q, k, v)
        found, cache = attend(layer, q, k, v)
        assert_close(found, y, rtol=0.0, atol=tolerance)
        if spec["recall_cache"]:
            self.assertEqual(chosen(cache), positions)
            self.assertEqual(cache.recalled(0).shape, (2, 2, spec["recall_cache"]))
            self.assert_keeps(cache.layers[0], k, v)
            if length > 2 * W:
                self.assertTrue(all(group for row in positions for group in row))

    def assert_keeps(self, state, k, v):
        """The state has the keys and values of its positions, and zeros in empty slots."""
        index = state.recalled[..., None].expand_as(state.recalled_k)
        for found, x in ((state.recalled_k, k), (state.recalled_v, v)):
            expected = x.gather(2, index.clamp(min=0)).masked_fill(index < 0, 0.0)
            assert_close(found, expected, rtol=0.0, atol=0.0)

    @torch.no_grad()
    def test_the_forward_gives_the_definition(self):
        cases = itertools.product(LAYOUTS, (0, 1, 5, W), ("kv_head", "query_head"), (0, 4))
        for layout, num, maps, sinks in cases:
            spec = {"window": layout, "recall_cache": num, "key_maps": maps, "num_sinks": sinks}
            with self.subTest(**spec):
                self.check(4 * W + 3, torch.float32, 1e-5, **spec)

    @torch.no_grad()
    def test_it_gives_it_at_every_length_around_borders(self):
        layers = [make_layer(window=layout, recall_cache=num).double() for layout in LAYOUTS for num in (3, W)]
        for length, layer in itertools.product(range(1, 4 * W + 4), layers):
            q, k, v = random_qkv(length, batch=1, dtype=torch.float64)
            y, positions = reference(layer, q, k, v)
            found, cache = attend(layer, q, k, v)
            assert_close(found, y, rtol=0.0, atol=1e-9, msg=lambda m: f"{layer.window} {length}: {m}")
            self.assertEqual(chosen(cache), positions, f"{layer.window} {length}")
            self.assert_keeps(cache.layers[0], k, v)

    @torch.no_grad()
    def test_it_gives_it_for_other_maps(self):
        for layout, spec in itertools.product(LAYOUTS, (
                {"linear_cap": 5}, {"feature_map": "taylor"}, {"feature_map": "positive_random"}, {"feature_map": "t2r", "bias": True},
                {"feature_map": "elu_plus_one", "feature_dim": 16}, {"feature_map": "hedgehog_exp"})):
            with self.subTest(layout=layout, **spec):
                self.check(4 * W, torch.float64, 1e-9, window=layout, recall_cache=3, **spec)

    @torch.no_grad()
    def test_operators_of_a_library_that_knows_no_cache_are_not_asked(self):
        for layout in LAYOUTS:
            layer = make_layer(window=layout, recall_cache=3)
            q, k, v = random_qkv(3 * W)
            cuts = (2 * W, 2 * W + 1, 2 * W + 2)
            expected, _ = attend(layer, q, k, v, cuts)
            layer.by_operators = True  # as where the library is loaded
            with mock.patch.object(module_of(layer, "operators_hedgerow"), "knows", lambda _: False):
                self.assertTrue(torch.equal(attend(layer, q, k, v, cuts)[0], expected))

    @torch.no_grad()
    def test_equal_scores_keep_the_earlier_key(self):
        # As far as the first choice, by empty sums: later ones would be of rounding, since sums of one key recall it exactly.
        for layout, length in (("terraced", 2 * W + 1), ("sliding", 2 * W)):
            layer = make_layer(window=layout, recall_cache=3)
            q, k, v = random_qkv(length)
            _, cache = attend(layer, q, k[:, :, :1].expand_as(k), v[:, :, :1].expand_as(v))
            self.assertEqual(chosen(cache), [[[4, 5, 6]] * 2] * 2)

    @torch.no_grad()
    def test_a_key_that_is_recalled_worst_stays_for_good(self):
        for layout in LAYOUTS:
            layer = make_layer(window=layout, recall_cache=2)
            q, k, v = random_qkv(20 * W)
            v = 0.1 * v
            v[:, :, 21] = 9.0
            _, cache = attend(layer, q, k, v)
            for row in chosen(cache):
                for group in row:
                    self.assertIn(21, group)


class Cuts(unittest.TestCase):
    @torch.no_grad()
    def test_decode_after_a_prefill_of_any_length_gives_the_full_forward_and_its_choices(self):
        length = 4 * W + 3
        for layout, num, sinks in itertools.product(LAYOUTS, (1, 5, W), (0, 4)):
            layer = make_layer(window=layout, recall_cache=num, num_sinks=sinks)
            q, k, v = random_qkv(length)
            expected, whole = attend(layer, q, k, v)
            for cut in range(length):
                y, cache = attend(layer, q, k, v, range(max(cut, 1), length))
                message = f"{layout} N {num} sinks {sinks} cut {cut}"
                assert_close(y, expected, rtol=0.0, atol=1e-5, msg=lambda m: f"{message}: {m}")
                self.assertTrue(torch.equal(cache.recalled(0), whole.recalled(0)), message)
                for name in ("kv", "k", "recalled_k", "recalled_v", "sink_k", "sink_v"):
                    assert_close(getattr(cache.layers[0], name), getattr(whole.layers[0], name), rtol=1e-4, atol=1e-5)

    @torch.no_grad()
    def test_pieces_give_the_full_forward_and_its_choices(self):
        length = 8 * W + 5
        for layout, num in itertools.product(LAYOUTS, (1, 5, W)):
            layer = make_layer(window=layout, recall_cache=num)
            q, k, v = random_qkv(length)
            expected, whole = attend(layer, q, k, v)
            for sizes in ((1,), (W - 1,), (W,), (W + 1,), (3 * W + 8,), (3,), (2, 1), (1, W + 3), (5, W, 1, 2 * W + 1)):
                cuts = list(itertools.takewhile(lambda t: t < length, itertools.accumulate(itertools.cycle(sizes))))
                y, cache = attend(layer, q, k, v, cuts)
                assert_close(y, expected, rtol=0.0, atol=1e-5, msg=lambda m: f"{layout} N {num} {sizes}: {m}")
                self.assertTrue(torch.equal(cache.recalled(0), whole.recalled(0)), f"{layout} N {num} {sizes}")

    @torch.no_grad()
    def test_autocast_changes_neither_sums_nor_choices(self):
        for layout in LAYOUTS:
            layer = make_layer(window=layout, recall_cache=5)
            q, k, v = (x.bfloat16() for x in random_qkv(6 * W + 1))
            y, whole = attend(layer, q, k, v)
            with torch.autocast("cpu", torch.bfloat16):
                for cuts in ((), (2 * W + 3, *range(2 * W + 4, 6 * W + 1))):
                    found, cache = attend(layer, q, k, v, cuts)
                    self.assertTrue(torch.equal(cache.recalled(0), whole.recalled(0)))
                    assert_close(cache.layers[0].kv, whole.layers[0].kv, rtol=1e-5, atol=1e-5)  # by which it was made
                    assert_close(found, y, rtol=0.01, atol=0.01)


class Models(unittest.TestCase):
    def models(self, kept=()):
        for layout, num in itertools.product(LAYOUTS, (1, 5, W)):
            with self.subTest(layout=layout, num=num), tempfile.TemporaryDirectory() as directory:
                yield make_model(directory, {**SPEC, "window": layout, "recall_cache": num}, kept)

    @torch.no_grad()
    def test_rows_of_a_padded_batch_give_and_choose_what_they_do_alone(self):
        lengths = (1, W - 1, W, W + 1, 2 * W, 2 * W + 1, 3 * W + 4, 4 * W)
        steps = 2 * W + 3
        longest = max(lengths) + steps
        for model in self.models():
            rows = [torch.randint(3, 97, (n + steps,)) for n in lengths]
            ids = torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0), value=2) for row in rows])
            mask = torch.stack([torch.arange(longest) >= longest - len(row) for row in rows]).long()
            alone = [model(row[None], use_cache=True) for row in rows]
            for pieces in ((longest,), (longest - steps, *range(longest - steps + 1, longest + 1)),
                           (longest - steps, longest - 9, longest - 8, longest)):
                cache, found, begin = None, [], 0
                for end in pieces:
                    output = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
                    cache, begin = output.past_key_values, end
                    found.append(output.logits)
                found = torch.cat(found, 1)
                for index, (row, expected) in enumerate(zip(rows, alone)):
                    assert_close(found[index, -len(row):], expected.logits[0], rtol=1e-4, atol=3e-5)
                    for layer in range(2):
                        self.assertTrue(torch.equal(cache.recalled(layer)[index],
                                                    expected.past_key_values.recalled(layer)[0]), f"row {index}")
            right = torch.stack([torch.nn.functional.pad(row, (0, longest - len(row)), value=2) for row in rows])
            output = model(right, attention_mask=mask.flip(1), use_cache=True)
            for index, (row, expected) in enumerate(zip(rows, alone)):
                assert_close(output.logits[index, :len(row)], expected.logits[0], rtol=1e-4, atol=3e-5)
                self.assertTrue(torch.equal(output.past_key_values.recalled(1)[index],
                                            expected.past_key_values.recalled(1)[0]), f"row {index}")

    @torch.no_grad()
    def test_rows_without_new_tokens_and_rows_that_begin_later_choose_as_alone(self):
        for model in self.models():
            ids, mask = torch.randint(3, 97, (2, 5 * W)), torch.ones(2, 5 * W, dtype=torch.int64)
            mask[0, 3 * W + 3:] = 0  # ends early
            mask[1, :2 * W + 1] = 0  # begins late: its first pieces are all padding
            cache = None
            for begin, end in itertools.pairwise((0, W, W + 1, 2 * W, 3 * W, 4 * W, 5 * W)):
                output = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache, use_cache=True)
                cache = output.past_key_values
            for row in range(2):
                alone = model(ids[row:row + 1, mask[row].bool()], use_cache=True).past_key_values
                self.assertTrue(torch.equal(cache.recalled(1)[row], alone.recalled(1)[0]), f"row {row}")

    @torch.no_grad()
    def test_generation_and_beams_give_the_same_with_the_cache_and_without(self):
        for model in self.models():
            ids = torch.randint(3, 97, (2, 11))
            for beams in (1, 3):
                given = dict(max_new_tokens=2 * W + 5, num_beams=beams, do_sample=False, eos_token_id=None, pad_token_id=2)
                self.assertEqual(model.generate(ids, use_cache=True, **given).tolist(),
                                 model.generate(ids, use_cache=False, **given).tolist(), f"seed {support.SEED}")

    @torch.no_grad()
    def test_rows_of_a_cache_are_reordered_repeated_and_selected(self):
        for model in self.models():
            ids, following = torch.randint(3, 97, (3, 3 * W + 2)), torch.randint(3, 97, (1, W))
            for change, order in ((lambda c: c.reorder_cache(torch.tensor([2, 0, 0])), [2, 0, 0]),
                                  (lambda c: c.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
                                  (lambda c: c.batch_select_indices(torch.tensor([1])), [1])):
                cache = model(ids, use_cache=True).past_key_values
                change(cache)
                for t in range(W):
                    output = model(following[:, t:t + 1].expand(len(order), 1), past_key_values=cache)
                whole = model(torch.cat((ids[order], following.expand(len(order), W)), 1), use_cache=True)
                assert_close(output.logits[:, -1], whole.logits[:, -1], rtol=1e-4, atol=3e-5)
                self.assertTrue(torch.equal(cache.recalled(0), whole.past_key_values.recalled(0)))

    @torch.no_grad()
    def test_a_packed_sequence_gives_what_it_gives_alone(self):
        lengths = (1, 7, 8, 30, 17, 3, 41)
        positions = torch.cat([torch.arange(n) for n in lengths])[None]
        for model in self.models():
            ids = torch.randint(3, 97, (1, sum(lengths)))
            packed = model(ids, position_ids=positions, use_cache=False).logits[0]
            alone = [model(x[None], use_cache=False).logits[0] for x in ids[0].split(lengths)]
            assert_close(packed, torch.cat(alone), rtol=1e-4, atol=3e-5)

    @torch.no_grad()
    def test_a_cache_is_constant_in_size_and_says_what_it_does_not_have(self):
        for model in self.models(kept=(1,)):
            sizes = []
            for length in (40, 400):
                cache = model(torch.randint(3, 97, (1, length)), use_cache=True).past_key_values
                sizes.append(sum(t.numel() for t in vars(cache.layers[0]).values()))
            self.assertEqual(sizes[0], sizes[1])
            with self.assertRaisesRegex(ValueError, "layer 1 kept softmax"):
                cache.recalled(1)
            with self.assertRaisesRegex(ValueError, "layer 0 has seen no tokens"):
                type(cache)(2).recalled(0)

    @torch.no_grad()
    def test_later_tokens_never_change_earlier_logits(self):
        for model in self.models():
            ids = torch.randint(3, 97, (1, 45))
            changed = ids.clone()
            changed[0, 29] = (changed[0, 29] + 1) % 97
            before, after = (model(x, use_cache=False).logits[:, :29] for x in (ids, changed))
            self.assertTrue(torch.equal(before, after))


class Gradients(unittest.TestCase):
    def test_the_choice_is_a_constant_and_checkpointing_makes_the_same(self):
        for layout in LAYOUTS:
            with self.subTest(layout=layout), tempfile.TemporaryDirectory() as directory:
                model = make_model(directory, {**SPEC, "window": layout, "recall_cache": 5}).train()
                ids, found = torch.randint(3, 97, (2, 4 * W + 3)), []
                for checkpointing in (None, False, True):
                    model.gradient_checkpointing_disable()
                    if checkpointing is not None:
                        model.gradient_checkpointing_enable({"use_reentrant": checkpointing})
                    model.zero_grad()
                    model(ids, labels=ids).loss.backward()
                    found.append({name: p.grad.clone() for name, p in model.named_parameters()})
                for other, name in itertools.product(found[1:], found[0]):
                    assert_close(other[name], found[0][name], rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}")

    def test_gradients_are_those_of_finite_differences(self):
        for layout in LAYOUTS:
            layer = make_layer(window=layout, recall_cache=3).double()
            inputs = [x.requires_grad_() for x in random_qkv(3 * W + 3, batch=1, dtype=torch.float64)]
            for cuts in ((), (W + 3, 2 * W + 6, 2 * W + 7)):
                self.assertTrue(torch.autograd.gradcheck(lambda q, k, v: attend(layer, q, k, v, cuts)[0], inputs,
                                                         fast_mode=True))


class Configuration(unittest.TestCase):
    def test_bad_values_are_refused_by_name(self):
        with tempfile.TemporaryDirectory() as directory:
            for message, spec in (("9; a window of 8 tokens takes 0 to 8", {"recall_cache": 9}),
                                  ("-1; a window of 8 tokens", {"recall_cache": -1}),
                                  ("'4'; a window of 8 tokens", {"recall_cache": "4"}),
                                  ("True; a window of 8 tokens", {"recall_cache": True}),
                                  ("1; a window of 0 tokens takes 0 to 0", {"recall_cache": 1, "window": "none",
                                                                            "num_sinks": 0}),
                                  ("2; features of identity have signs", {"recall_cache": 2, "feature_map": "identity"})):
                with self.assertRaisesRegex(ValueError, f"hedgerow.attention.recall_cache is {message}"):
                    make_model(directory, {**SPEC, **spec})

    @torch.no_grad()
    def test_0_is_what_a_file_that_says_nothing_gives(self):
        ids = torch.randint(3, 97, (2, 4 * W + 3))
        for layout in (*LAYOUTS, "none"):
            spec = {**SPEC, "window": layout, "num_sinks": 4 if layout != "none" else 0}
            with tempfile.TemporaryDirectory() as directory:
                silent, told = (make_model(directory, x) for x in (spec, {**spec, "recall_cache": 0}))
            outputs = [model(ids, use_cache=True) for model in (silent, told)]
            self.assertTrue(torch.equal(outputs[0].logits, outputs[1].logits))
            self.assertEqual(outputs[1].past_key_values.recalled(0).shape, (2, 2, 0))
            self.assertTrue(all(x.past_key_values.layers[0].recalled_k is None for x in outputs))


if __name__ == "__main__":
    unittest.main()
