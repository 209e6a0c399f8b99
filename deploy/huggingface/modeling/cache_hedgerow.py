"""What generation carries from step to step, and what a step is. Letters as in hybrid_hedgerow.py; C slots of a ring."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass
class LinearState:
    """One linear layer's memory: sums over the keys before the window, and the raw keys and values of window and sinks."""

    kv: torch.Tensor  # [B, U, F, D] fp32
    k: torch.Tensor  # [B, U, F] fp32
    ring_k: torch.Tensor  # [B, G, C, D]; C = W (sliding), 2 W (terraced), 1 (none); token t of a row at slot t mod C
    ring_v: torch.Tensor
    sink_k: torch.Tensor | None = None  # [B, G, S, D]: a row's first tokens, once it has seen them; None without sinks
    sink_v: torch.Tensor | None = None
    # Of recall_cache, None with 0: the keys before the window that stay exact, by position; empty slots first, of zeros.
    recalled_k: torch.Tensor | None = None  # [B, G, N, D]
    recalled_v: torch.Tensor | None = None
    recalled: torch.Tensor | None = None  # int64 [B, G, N]: their positions, from 0 at a row's first real token; -1: empty


@dataclass
class SoftmaxState:
    """One softmax layer's memory: all keys and values, by column."""

    k: torch.Tensor  # [B, G, columns, D]
    v: torch.Tensor


class HedgerowCache:
    """What generation carries from step to step. Constant in size unless layers kept softmax attention."""

    def __init__(self, num_layers: int):
        self.layers: list[LinearState | SoftmaxState | None] = [None] * num_layers
        self.columns = 0  # columns of input seen, padding included
        self.seen: torch.Tensor | None = None  # int64 [B]: real tokens seen by each row
        self.offset: torch.Tensor | None = None  # int64 [B]: the caller's position_ids less that count
        self.real: torch.Tensor | None = None  # bool [B, columns], kept only for softmax layers
        self.is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.layers)

    def recalled(self, layer_idx: int) -> torch.Tensor:
        """Which tokens the layer keeps exactly beside window and sinks: int64 [B, G, N], ascending, -1 for an empty slot.

        Positions count a row's real tokens from 0. The choices are those that the last query so far saw: what the next one
        finds at a border of chunks is not among them yet. N is 0 without recall_cache. Throws ValueError where there is no
        such state: before the first forward, and in layers that kept softmax attention.
        """
        state = self.layers[layer_idx]
        if not isinstance(state, LinearState):
            raise ValueError(f"recalled: layer {layer_idx} " + ("has seen no tokens" if state is None else "kept softmax "
                             "attention, and with it all tokens"))
        if state.recalled is None:
            return state.ring_k.new_empty((*state.ring_k.shape[:2], 0), dtype=torch.int64)
        return state.recalled

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self._map(lambda t: t.index_select(0, beam_idx.to(t.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._map(lambda t: t.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._map(lambda t: t[indices])

    def _map(self, change) -> None:
        for state in self.layers:
            if state is not None:
                for name, tensor in vars(state).items():
                    setattr(state, name, None if tensor is None else change(tensor))
        for name in ("seen", "offset", "real"):
            tensor = getattr(self, name)
            setattr(self, name, None if tensor is None else change(tensor))


@dataclass
class Step:
    """Which of the new columns are real tokens, and where they stand in their rows."""

    first: torch.Tensor  # int64 [B]: column of each row's first real new token
    count: torch.Tensor  # int64 [B]: real new tokens
    count_to_read: torch.Tensor  # the same on the CPU, but for torch.compile: who reads it does not wait for the device
    seen: torch.Tensor  # int64 [B]: real tokens before this step
    real: torch.Tensor | None  # bool [B, all columns] for softmax layers; None: all real
    one_each: bool  # every row has exactly one new token
    whole: bool = False  # no padding among the new columns
    empty_rows: bool = False  # some row has no new token
    # int64 [B, T], for RoPE: the count of real tokens before each in its row or packed sequence, whatever stands around them
    positions: torch.Tensor | None = None
    offset: torch.Tensor | None = None  # int64 [B]: the caller's position_ids less those
    packed: Any = None  # packing_hedgerow.Packing: several sequences in a row, which do not see each other

    def to(self, device: torch.device | str, non_blocking: bool = False, **_) -> Step:
        """The same on another device, as accelerate asks before a layer that lies there; count_to_read stays on the CPU."""
        kept = ("count_to_read",)
        return replace(self, **{name: value.to(device, non_blocking=non_blocking) for name, value in vars(self).items()
                                if name not in kept and hasattr(value, "to")})
