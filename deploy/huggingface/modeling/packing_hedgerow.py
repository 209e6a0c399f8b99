"""Sequences packed in one row, as training without padding has them, and what the caller says of positions.

transformers' own models (masking_utils.find_packed_sequence_indices) see the border of two sequences wherever position_ids
do not go on by 1, if there is neither an attention mask nor a cache; DataCollatorWithFlattening makes such rows, and may say
the borders again in cu_seq_lens_q, cu_seq_lens_k and seq_idx. Each sequence is computed as if it stood alone: window, sinks,
chunk borders, sums and positions begin anew. Letters as in hybrid_hedgerow.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .cache_hedgerow import Step

BORDERS = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")
APART = ("sequences packed in a row are computed apart only without attention_mask and without a cache: "
         "leave attention_mask out and give use_cache=False")


@dataclass
class Packing:
    """Where the tokens of packed sequences stand, flat over [B, T], and in rows of sequences alike in length."""

    rows: list[torch.Tensor]  # int64 [N, L] each: the token at every place, or a sequence's last where the row is longer
    places: torch.Tensor  # int64 [B, T]: where among the places of all rows a token stands

    def apart(self, attend: Callable, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, H, T, D], k, v [B, G, T, D] -> [B, H, T, D]: attend(q, k, v, step, no cache) of each sequence by itself."""
        flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
        found = []
        for row in self.rows:
            y = attend(*(x[row].transpose(1, 2) for x in flat), whole_rows(*row.shape, row.device), None)
            found.append(y.transpose(1, 2).flatten(0, 1))
        return torch.cat(found)[self.places].transpose(1, 2)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Packing:
        return Packing([row.to(device, non_blocking=non_blocking) for row in self.rows],
                       self.places.to(device, non_blocking=non_blocking))


def whole_rows(batch: int, length: int, device: torch.device) -> Step:
    """A step of rows without padding, from their first token on."""
    zeros = torch.zeros(batch, dtype=torch.int64, device=device)
    return Step(zeros, zeros + length, torch.full((batch,), length, device="cpu"), zeros, None, False, whole=True)


def pack(starts: torch.Tensor) -> tuple[Packing, torch.Tensor]:
    """Of bool [B, T], where sequences begin: their packing, and int64 [B, T], the positions from 0 in each.

    A row holds one sequence, and stands with those of lengths n / 2 < length <= n, n a power of 2: so one long sequence does
    not lengthen the rows of all short ones, and places are fewer than twice the tokens. What a row has behind its sequence
    is later than it, so attention, which is causal, never reads it.
    """
    device = starts.device
    begins = starts.flatten().nonzero()[:, 0]
    lengths = torch.diff(begins, append=begins.new_tensor([starts.numel()]))
    token = torch.arange(starts.numel(), device=device)
    sequence = starts.flatten().cumsum(0) - 1
    position = token - begins[sequence]
    classes: dict[int, list[int]] = {}
    for index, length in enumerate(lengths.tolist()):
        classes.setdefault((length - 1).bit_length(), []).append(index)
    rows, place, taken = [], torch.empty_like(token), 0
    for members in classes.values():
        chosen = torch.tensor(members, device=device)
        longest = int(lengths[chosen].max())
        columns = torch.arange(longest, device=device)[None].minimum(lengths[chosen, None] - 1)
        rows.append(begins[chosen, None] + columns)
        place[rows[-1]] = taken + torch.arange(len(members), device=device)[:, None] * longest + columns
        taken += rows[-1].numel()
    return Packing(rows, place.view_as(starts)), position.view_as(starts)


def expand_positions(position_ids: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """[B or 1, T] -> [B, T]."""
    if position_ids.dim() != 2 or position_ids.shape[1] != shape[1] or position_ids.shape[0] not in (1, shape[0]):
        raise ValueError(f"position_ids: expected {list(shape)} or {[1, shape[1]]}, found {list(position_ids.shape)}")
    return position_ids.expand(shape)


def packed_starts(shape: tuple[int, int], position_ids: torch.Tensor | None,
                  borders: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """bool [B, T]: tokens that begin a sequence; None where only a row's first token does.

    Throws ValueError if two of the arguments disagree.
    """
    found: dict[str, torch.Tensor] = {}
    if position_ids is not None:
        found["position_ids"] = torch.diff(position_ids, prepend=position_ids[:, :1] - 1) != 1
    for name, given in borders.items():
        if name == "seq_idx":
            if given.dim() != 2 or given.shape[1] != shape[1] or given.shape[0] not in (1, shape[0]):
                raise ValueError(f"seq_idx: expected {list(shape)}, found {list(given.shape)}")
            found[name] = torch.diff(given.expand(shape), prepend=given[:, :1].expand(shape[0], 1)) != 0
            continue
        total = shape[0] * shape[1]
        if given.dim() != 1 or int(given[0]) != 0 or int(given[-1]) != total or bool((torch.diff(given) < 0).any()):
            raise ValueError(f"{name}: expected growing offsets from 0 to {total} (batch times tokens), "
                             f"found {given.tolist()}")
        starts = torch.zeros(total, dtype=torch.bool, device=given.device)
        starts[given[given < total].long()] = True
        found[name] = starts.view(shape)
        if not bool(found[name][:, 0].all()):
            raise ValueError(f"{name}: a sequence goes on from one row of the batch to the next")
    for starts in found.values():
        starts[:, 0] = True
    if not found:
        return None
    (first, starts), *others = found.items()
    for name, other in others:
        if not torch.equal(starts, other.to(starts.device)):
            raise ValueError(f"{name}: other sequences than {first} has")
    return starts if bool(starts[:, 1:].any()) else None


def check_positions(position_ids: torch.Tensor, expected: torch.Tensor, new: torch.Tensor, seen: torch.Tensor,
                    offset: torch.Tensor) -> torch.Tensor:
    """The offset [B] of the caller's position_ids from the `expected` [B, T], which count a row's real tokens from 0.

    RoPE turns differences of positions into scores, so an offset of a whole row changes nothing, and is left out; anything
    else than going on by 1 would. `new` bool [B, T] marks real tokens, `offset` is that of rows that have `seen` some.
    """
    found = position_ids - expected
    own = found.gather(1, new.int().argmax(1, keepdim=True))[:, 0]
    offset = torch.where(seen > 0, offset, own)
    wrong = (found != offset[:, None]) & new
    if bool(wrong.any()):
        row, column = wrong.nonzero()[0].tolist()
        following = int(expected[row, column] + offset[row])
        raise ValueError(f"position_ids: token {column} of row {row} has {int(position_ids[row, column])}, where "
                         f"{following} would go on from the row's token before it; {APART}")
    return offset
