"""position_ids and packed sequences of an export: each sequence as if alone, or refused by name. transformers is the oracle.

Catches: a window, a sink or a sum that sees the sequence before; positions that RoPE counts one way and the window another;
borders that a collator marked and nobody read.
"""

from __future__ import annotations

import itertools
import tempfile
import unittest
from importlib import import_module

import support

support.require("torch", "transformers")

import torch
from export_training_test import ATTENTION, llama_and_export
from modeling_test import DEFAULT, LAYOUTS, make_model
from torch.testing import assert_close
from transformers import DataCollatorWithFlattening

LENGTHS = (1, 7, 8, 9, 16, 17, 30, 3)


def positions_of(lengths, start: int = 0) -> torch.Tensor:
    """position_ids [1, T] of packed sequences, each from `start`."""
    return torch.cat([start + torch.arange(n) for n in lengths])[None]


class Packing(unittest.TestCase):
    @torch.no_grad()
    def test_a_packed_sequence_gives_what_it_gives_alone(self):
        cases = [(layout, kept, {**DEFAULT, "num_sinks": 0 if layout == "none" else sinks})
                 for layout, kept, sinks in itertools.product(LAYOUTS, ((), (1,)), (0, 4))]
        for layout, kept, spec in cases:
            with self.subTest(layout=layout, kept=kept, **spec), tempfile.TemporaryDirectory() as directory:
                model = make_model(directory, {"window": layout, "window_size": 8, "feature_dim": 12, **spec}, kept)
                ids = torch.randint(3, 97, (2, sum(LENGTHS)))
                other = LENGTHS[::-1]
                for start in (0, 5):
                    positions = torch.cat((positions_of(LENGTHS, start), positions_of(other, start)))
                    packed = model(ids, position_ids=positions, use_cache=False).logits
                    for row, lengths in enumerate((LENGTHS, other)):
                        alone = [model(x[None], use_cache=False).logits[0] for x in ids[row].split(lengths)]
                        assert_close(packed[row], torch.cat(alone), rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_borders_are_where_llama_sees_them(self):
        ids = torch.randint(3, 97, (2, 40))
        jumps = torch.arange(40)[None].repeat(2, 1)
        jumps[0, 11:] += 3  # a jump forward is a border too
        jumps[1, 20:] -= 1
        with tempfile.TemporaryDirectory() as directory:
            llama, ours = llama_and_export(directory)
            same = torch.zeros(1, 40, dtype=torch.int64)
            for positions in (positions_of((15, 1, 24)), positions_of((40,), 9), jumps, same):
                found, expected = (m(ids, position_ids=positions, use_cache=False).logits for m in (ours, llama))
                assert_close(found, expected, rtol=1e-4, atol=1e-4)

    def test_the_flattening_collators_batch_trains_as_its_sequences_do(self):
        rows = [torch.randint(3, 97, (n,)) for n in LENGTHS[1:]]
        collate = DataCollatorWithFlattening(return_tensors="pt", return_flash_attn_kwargs=True, return_seq_idx=True)
        batch = collate([{"input_ids": row, "labels": row} for row in rows])
        targets = sum(len(row) - 1 for row in rows)
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION, (1,)).train()
            marks = ("seq_idx", "cu_seq_lens_q", "cu_seq_lens_k")
            for left_out in ((), ("position_ids",), ("position_ids", "seq_idx"), marks):
                model.zero_grad()
                given = {name: value for name, value in batch.items() if name not in left_out}
                loss = model(**given, num_items_in_batch=targets).loss
                loss.backward()
                found = {name: p.grad.clone() for name, p in model.named_parameters()}
                model.zero_grad()
                losses = [model(row[None], labels=row[None], num_items_in_batch=targets).loss for row in rows]
                sum(losses).backward()
                assert_close(loss, sum(losses), rtol=1e-5, atol=0.0)
                for name, parameter in model.named_parameters():
                    assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-5, msg=lambda m: f"{left_out} {name}: {m}")

    @torch.no_grad()
    def test_rows_for_packed_sequences_take_fewer_than_twice_their_tokens(self):
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION).model
        lengths = [1000] + [1, 2, 3] * 50 + [500, 65, 129]
        starts = positions_of(lengths) == 0
        packing, positions = import_module(type(model).__module__.replace("modeling_h", "packing_h")).pack(starts)
        self.assertLess(sum(row.numel() for row in packing.rows), 2 * sum(lengths))
        self.assertTrue(torch.equal(positions, positions_of(lengths)))

    @torch.no_grad()
    def test_packed_sequences_that_cannot_be_computed_apart_are_refused_by_name(self):
        ids = torch.randint(3, 97, (1, 20))
        restart = positions_of((12, 8))
        offsets = torch.tensor([0, 12, 20], dtype=torch.int32)
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            for name, given in (("position_ids: token 12 of row 0", {"position_ids": restart}),  # eval makes a cache
                                ("position_ids", {"position_ids": restart, "use_cache": True}),
                                ("position_ids", {"position_ids": restart, "attention_mask": torch.ones_like(ids)}),
                                ("cu_seq_lens_q", {"cu_seq_lens_q": offsets}),
                                ("seq_idx", {"seq_idx": torch.zeros(1, 20), "attention_mask": torch.ones_like(ids)})):
                with self.assertRaisesRegex(ValueError, f"^{name}.*use_cache=False"):
                    model(ids, **{"use_cache": None if "attention_mask" not in given else False, **given})
            for name, given in (("cu_seq_lens_q: other sequences than position_ids", {"position_ids": restart,
                                                                                       "cu_seq_lens_q": offsets[[0, 2]]}),
                                ("cu_seq_lens_k: expected growing offsets from 0 to 20", {"cu_seq_lens_k": offsets[:2]}),
                                ("seq_idx: expected", {"seq_idx": torch.zeros(1, 19)}),
                                ("position_ids: expected", {"position_ids": restart[:, 1:]}),
                                ("position_ids: expected", {"position_ids": restart[0]})):
                with self.assertRaisesRegex(ValueError, name):
                    model(ids, use_cache=False, **given)


class Positions(unittest.TestCase):
    @torch.no_grad()
    def test_an_offset_of_a_row_changes_nothing_with_mask_or_cache_either(self):
        ids = torch.randint(3, 97, (2, 30))
        mask = torch.ones_like(ids)
        mask[0, :7] = 0
        with tempfile.TemporaryDirectory() as directory:
            for model in (make_model(directory, ATTENTION, (1,)), *llama_and_export(directory)):
                expected = model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
                for positions in ((mask.cumsum(1) - 1).clamp(min=0), torch.arange(30)[None], torch.arange(30)[None] + 11):
                    found = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
                    assert_close(found[mask.bool()], expected, rtol=1e-4, atol=1e-4)
                    cache, parts = None, []
                    for begin, end in ((0, 5), (5, 17), *((t, t + 1) for t in range(17, 30))):
                        output = model(ids[:, begin:end], attention_mask=mask[:, :end], past_key_values=cache,
                                       use_cache=True, position_ids=positions[:, begin:end])
                        cache = output.past_key_values
                        parts.append(output.logits)
                    assert_close(torch.cat(parts, 1)[mask.bool()], expected, rtol=1e-4, atol=1e-4)

    @torch.no_grad()
    def test_positions_that_do_not_go_on_from_the_cache_are_refused_by_name(self):
        ids = torch.randint(3, 97, (2, 30))
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            for start in (None, 0, 4):
                positions = None if start is None else start + torch.arange(20)[None]
                for wrong in (0, 19, 21, 40):
                    cache = model(ids[:, :20], position_ids=positions, use_cache=True).past_key_values
                    following = torch.tensor([[20 + (start or 0)], [wrong + (start or 0)]])
                    with self.assertRaisesRegex(ValueError, "^position_ids: token 0 of row 1"):
                        model(ids[:, 20:21], position_ids=following, past_key_values=cache)

    @torch.no_grad()
    def test_a_mask_that_contradicts_the_cache_is_refused_by_name(self):
        ids = torch.randint(3, 97, (1, 21))
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        with tempfile.TemporaryDirectory() as directory:
            model = make_model(directory, ATTENTION)
            cache = model(ids[:, :20], use_cache=True).past_key_values
            for wrong in (mask, mask[:, 20:]):
                with self.assertRaisesRegex(ValueError, "^attention_mask"):
                    model(ids[:, 20:], attention_mask=wrong, past_key_values=cache)


if __name__ == "__main__":
    unittest.main()
