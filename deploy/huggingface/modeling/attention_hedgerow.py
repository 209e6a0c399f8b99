"""Hybrid attention in linear time and constant memory, in plain PyTorch: the student's attention of an export.

LoLCATs (arXiv 2410.10254 eq. 6), per head, fp32 inside:
  y_i = (sum_window g exp(s_ij - m_i) v_j + sum_before phi_q(q_i).phi_k(k_j) v_j) / (the same sums without v)
with s = q.k / sqrt(D), m the maximum over the window, g = sigmoid(window_factors). Windows: sliding (the last W keys) or
terraced (own chunk of W tokens and the whole previous one, borders anchored at each row's first real token).

Letters: B batch, T new tokens, H query heads, G key-value heads, D head_dim, F features, W window size, L local length.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_hedgerow import HedgerowConfig

FEATURE_CLAMP = 1e-12
LINEAR_EPSILON = 1e-12
PURE_LINEAR_CHUNK = 64  # tokens a step where no window sets it


@dataclass
class LinearState:
    """One linear layer's memory: sums over the keys before the window, and the window's raw keys and values."""

    kv: torch.Tensor  # [B, H, F, D] fp32
    k: torch.Tensor  # [B, H, F] fp32
    ring_k: torch.Tensor  # [B, G, C, D]; C = W (sliding), 2 W (terraced), 0 (none); token t of a row at slot t mod C
    ring_v: torch.Tensor


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
        self.real: torch.Tensor | None = None  # bool [B, columns], kept only for softmax layers
        self.is_compileable = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return len(self.layers)

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
                    setattr(state, name, change(tensor))
        self.seen = None if self.seen is None else change(self.seen)
        self.real = None if self.real is None else change(self.real)


@dataclass
class Step:
    """Which of the new columns are real tokens, and where they stand in their rows."""

    first: torch.Tensor  # int64 [B]: column of each row's first real new token
    count: torch.Tensor  # int64 [B]: real new tokens
    seen: torch.Tensor  # int64 [B]: real tokens before this step
    real: torch.Tensor | None  # bool [B, all columns] for softmax layers; None: all real
    one_each: bool  # every row has exactly one new token


class HedgerowRMSNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rope_tables(config: HedgerowConfig, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [B, 1, T, D] of int64 positions [B, T], always computed from the configuration."""
    rope, dim = config.rope_parameters, config.head_dim
    steps = torch.arange(0, dim, 2, dtype=torch.int64, device=positions.device).float()
    inv_freq = 1.0 / (rope["rope_theta"] ** (steps / dim))
    if rope["rope_type"] == "linear":
        inv_freq = inv_freq / rope["factor"]
    elif rope["rope_type"] == "llama3":
        inv_freq = llama3_frequencies(inv_freq, rope)
    angles = positions[..., None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def llama3_frequencies(inv_freq: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3.1's scaling: long wavelengths by `factor`, short ones not, smooth between."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    wavelength = 2 * math.pi / inv_freq
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * inv_freq / rope["factor"] + smooth * inv_freq
    scaled = torch.where(wavelength > original / low, inv_freq / rope["factor"], inv_freq)
    medium = (wavelength >= original / high) & (wavelength <= original / low)
    return torch.where(medium, blended, scaled)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class FeatureMapProjection(nn.Module):
    """The weights of one feature map under LoLCATs' names: mlp.layer [H, D, f], mlp.bias [H, f]."""

    def __init__(self, heads: int, head_dim: int, projected_dim: int, bias: bool):
        super().__init__()
        self.layer = nn.Parameter(torch.empty(heads, head_dim, projected_dim))
        self.bias = nn.Parameter(torch.empty(heads, projected_dim)) if bias else None


def taylor_features(x: torch.Tensor, order: int) -> torch.Tensor:
    """x^a / sqrt(a!) of every monomial of degree <= order, so that phi(q).phi(k) = sum_n (q.k)^n / n!: [.., d] -> [.., F]."""
    degrees = [torch.ones_like(x[..., :1])]
    for degree in range(1, order + 1):
        indices = list(itertools.combinations_with_replacement(range(x.shape[-1]), degree))
        weights = [math.prod(1 / math.factorial(row.count(i)) for i in set(row)) ** 0.5 for row in indices]
        columns = torch.tensor(indices, device=x.device).T
        monomials = math.prod(x[..., column] for column in columns)
        degrees.append(monomials * torch.tensor(weights, dtype=x.dtype, device=x.device))
    return torch.cat(degrees, dim=-1)


class FeatureMap(nn.Module):
    """phi(x) = activation(x W + b) per query head (Hedgehog eq. 4, 5; T2R). [B, H, T, D] -> [B, H, T, F].

    Two stand for exp(q.k / sqrt(D)) without learning, with x' = D^-1/4 x: positive random features (FAVOR+; W is Omega)
    and the Taylor series. A query's random features are brought to a largest of 1 / sqrt(F), a key's keep their size.
    """

    def __init__(self, config: HedgerowConfig, of_queries: bool):
        super().__init__()
        spec = config.attention
        self.kind, self.negation, self.order = spec["feature_map"], spec["negation"], spec["order"]
        self.of_queries = of_queries
        self.mlp = None
        if spec["projection"]:
            self.mlp = FeatureMapProjection(config.num_attention_heads, config.head_dim, config.projected_dim, spec["bias"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind in ("positive_random", "taylor"):
            x = x * x.shape[-1] ** -0.25
        half_square = x.pow(2).sum(-1, keepdim=True) / 2
        if self.mlp is not None:
            x = torch.einsum("bhtd,hdf->bhtf", x, self.mlp.layer.to(x.dtype))
            if self.mlp.bias is not None:
                x = x + self.mlp.bias.to(x.dtype)[:, None]
        if self.kind == "positive_random":
            return (x - (x.amax(-1, keepdim=True) if self.of_queries else half_square)).exp() / math.sqrt(x.shape[-1])
        if self.kind == "taylor":
            return taylor_features(x, self.order)
        phi = self._activate(x)
        return phi if self.kind == "identity" else phi.clamp(min=FEATURE_CLAMP)

    def _activate(self, z: torch.Tensor) -> torch.Tensor:
        if self.kind == "hedgehog_softmax":
            positive = z.softmax(-1)
            return torch.cat((positive, (-z).softmax(-1)), dim=-1) if self.negation else positive
        if self.kind == "hedgehog_exp":
            positive = (z - z.amax(-1, keepdim=True)).exp()
            return torch.cat((positive, (z.amin(-1, keepdim=True) - z).exp()), dim=-1) if self.negation else positive
        if self.kind == "elu_plus_one":
            return 1 + F.elu(z)
        return z if self.kind == "identity" else F.relu(z)


def repeat_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    """[B, G, ...] -> [B, H, ...]: head h reads head h / (H / G)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1) if x.shape[1] != heads else x


def gather_tokens(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """x [B, N, T, D], index int64 [B, L] -> [B, N, L, D]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


class HedgerowAttention(nn.Module):
    """Projections of the teacher, attention of the student (or of the teacher, in layers that kept it)."""

    def __init__(self, config: HedgerowConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden, o_bias = config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=o_bias)
        if config.qk_norm:
            self.q_norm = HedgerowRMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = HedgerowRMSNorm(self.head_dim, config.rms_norm_eps)
        self.softmax = config.is_softmax_layer(layer_idx)
        self.window, self.window_size = config.attention["window"], config.attention["window_size"]
        self.capacity = {"none": 0, "sliding": 1, "terraced": 2}[self.window] * self.window_size
        if not self.softmax:
            self.feature_map_q = FeatureMap(config, of_queries=True)
            self.feature_map_k = FeatureMap(config, of_queries=False)
            if self.window != "none":
                self.window_factors = nn.Parameter(torch.zeros(1, self.heads, 1, 1))

    def forward(self, hidden_states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step,
                cache: HedgerowCache | None) -> torch.Tensor:
        """[B, T, M] -> [B, T, M]."""
        batch, length, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(batch, length, self.heads, self.head_dim)
        k = self.k_proj(hidden_states).view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(hidden_states).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        if self.config.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = apply_rope(q.transpose(1, 2), cos, sin), apply_rope(k.transpose(1, 2), cos, sin)
        if self.softmax:
            y = self._softmax_attention(q, k, v, step, cache)
        else:
            y = self._hybrid_attention(q, k, v, step, cache)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))

    def _softmax_attention(self, q, k, v, step: Step, cache: HedgerowCache | None) -> torch.Tensor:
        """The teacher's causal attention over all columns so far."""
        if cache is not None:
            past = cache.layers[self.layer_idx]
            if past is not None:
                k, v = torch.cat((past.k, k), dim=2), torch.cat((past.v, v), dim=2)
            cache.layers[self.layer_idx] = SoftmaxState(k, v)
        total, length = k.shape[2], q.shape[2]
        rows = torch.arange(total - length, total, device=q.device)[:, None]
        columns = torch.arange(total, device=q.device)[None]
        mask = columns <= rows
        if (window := self.config.teacher_window(self.layer_idx)) is not None:
            mask = mask & (columns > rows - window)
        if step.real is not None:
            # A padding query sees itself, or its softmax would be 0 / 0 and poison sums that only mask it.
            mask = (mask & step.real[:, None, None, :]) | (columns == rows)
        k, v = repeat_heads(k, self.heads), repeat_heads(v, self.heads)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def _hybrid_attention(self, q, k, v, step: Step, cache: HedgerowCache | None) -> torch.Tensor:
        state = None if cache is None else cache.layers[self.layer_idx]
        if state is not None and step.one_each:
            return self._decode(q, k, v, state, step)
        q_local, k_local, v_local, begin, base = self._localize(q, k, v, state, step)
        y, phi_k = self._chunked(q_local, k_local, v_local, state)
        if cache is not None:
            cache.layers[self.layer_idx] = self._advance(phi_k, k_local, v_local, state, begin + step.count, base)
        # Column c of a row is its local token begin + (c - first); padding columns read some real one, harmlessly.
        columns = torch.arange(q.shape[2], device=q.device)[None] - step.first[:, None] + begin[:, None]
        return gather_tokens(y, columns.clamp(0, y.shape[2] - 1)).to(q.dtype)

    def _window_base(self, seen: torch.Tensor) -> torch.Tensor:
        """Position of the first key that is still raw after `seen` tokens; keys before it are in the sums."""
        if self.window == "none":
            return seen
        if self.window == "sliding":
            return (seen - self.window_size).clamp(min=0)
        return ((seen + self.window_size - 1) // self.window_size - 2).clamp(min=0) * self.window_size

    def _localize(self, q, k, v, state: LinearState | None, step: Step):
        """Lines each row up at local position 0 = its window base: cached raw keys, then the new tokens.

        Returns q [B, H, L, D], k, v [B, G, L, D], begin [B] (local position of the first new token) and base [B].
        What lies behind a row's last token is some real token again; causality keeps it out of everything.
        """
        length = q.shape[2]
        base = self._window_base(step.seen)
        begin = step.seen - base
        cached = 0 if state is None else int(begin.max())
        local = torch.arange(cached + length, device=q.device)[None]
        new = (local - begin[:, None] + step.first[:, None]).clamp(0, length - 1)
        q_local, k_local, v_local = (gather_tokens(x, new) for x in (q, k, v))
        if cached:
            slots = (base[:, None] + local) % max(self.capacity, 1)
            is_cached = (local < begin[:, None])[:, None, :, None]
            k_local = torch.where(is_cached, gather_tokens(state.ring_k, slots), k_local)
            v_local = torch.where(is_cached, gather_tokens(state.ring_v, slots), v_local)
        return q_local, k_local, v_local, begin, base

    def _wide(self, x: torch.Tensor) -> torch.Tensor:
        return repeat_heads(x.to(torch.promote_types(x.dtype, torch.float32)), self.heads)

    def _gate(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.sigmoid(self.window_factors.to(dtype))

    def _chunked(self, q, k, v, state: LinearState | None) -> tuple[torch.Tensor, torch.Tensor]:
        """The definition above over local positions, a chunk of W queries at a time: O(L (2 W + F) D).

        Returns y [B, H, L, D] and phi_k [B, H, L, F], both fp32.
        """
        length = q.shape[2]
        width = self.window_size if self.window != "none" else PURE_LINEAR_CHUNK
        pad = -length % width
        q, k, v = (F.pad(self._wide(x), (0, 0, 0, pad)) for x in (q, k, v))
        phi_q, phi_k = self.feature_map_q(q), self.feature_map_k(k)
        kv, k_sum = (0.0, 0.0) if state is None else (state.kv.to(q.dtype), state.k.to(q.dtype))
        outputs = []
        for begin in range(0, length, width):
            # Two chunks of keys: the previous one and the own one; everything earlier is in the sums.
            first = max(begin - width, 0)
            softmax, linear = self._masks(width, begin - first, q.device)
            here, keys = slice(begin, begin + width), slice(first, begin + width)
            weights = torch.zeros((), dtype=q.dtype, device=q.device)
            if linear is not None:
                weights = (phi_q[:, :, here] @ phi_k[:, :, keys].transpose(2, 3)).masked_fill(~linear, 0.0)
            if softmax is not None:
                scores = (q[:, :, here] @ k[:, :, keys].transpose(2, 3)) / math.sqrt(self.head_dim)
                scores = scores.masked_fill(~softmax, float("-inf"))
                weights = weights + self._gate(q.dtype) * (scores - scores.amax(-1, keepdim=True)).exp()
            numerator, denominator = weights @ v[:, :, keys], weights.sum(-1, keepdim=True)
            if torch.is_tensor(kv):
                numerator = numerator + phi_q[:, :, here] @ kv
                denominator = denominator + phi_q[:, :, here] @ k_sum[..., None]
            outputs.append(numerator / (denominator if self.window != "none" else denominator + LINEAR_EPSILON))
            if begin >= width:
                leaving = slice(first, begin)
                kv = kv + phi_k[:, :, leaving].transpose(2, 3) @ v[:, :, leaving]
                k_sum = k_sum + phi_k[:, :, leaving].sum(2)
        return torch.cat(outputs, dim=2)[:, :, :length], phi_k[:, :, :length]

    def _masks(self, width: int, offset: int, device: torch.device) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """bool [W, offset + W]: softmax and linear pairs of a chunk's queries with the previous and its own keys."""
        query = torch.arange(width, device=device)[:, None] + offset
        key = torch.arange(offset + width, device=device)[None]
        causal = key <= query
        if self.window == "none":
            return None, causal
        if self.window == "terraced":
            return causal, None
        return causal & (key > query - width), causal & (key <= query - width)

    def _advance(self, phi_k, k, v, state: LinearState | None, count: torch.Tensor, base: torch.Tensor) -> LinearState:
        """The state after each row's first `count` [B] local tokens."""
        seen = base + count
        leaving = self._window_base(seen) - base  # local tokens that go into the sums
        local = torch.arange(k.shape[2], device=k.device)[None]
        kept = phi_k * (local < leaving[:, None])[:, None, :, None]
        kv, k_sum = kept.transpose(2, 3) @ self._wide(v), kept.sum(2)
        if state is not None:
            kv, k_sum = kv + state.kv, k_sum + state.k
        # Slot s holds the last token t < seen with t mod C = s.
        slots = torch.arange(self.capacity, device=k.device)[None]
        tokens = seen[:, None] - 1 - (seen[:, None] - 1 - slots) % max(self.capacity, 1)
        index = (tokens - base[:, None]).clamp(0, k.shape[2] - 1)
        return LinearState(kv, k_sum, gather_tokens(k, index), gather_tokens(v, index))

    def _decode(self, q, k, v, state: LinearState, step: Step) -> torch.Tensor:
        """One token a row; the state advances in place. q [B, H, 1, D], k and v [B, G, 1, D]."""
        position = step.seen  # of the new token
        base = self._window_base(position + 1)
        if self.capacity:
            self._leave(state, self._window_base(position), base)
            slot = (position % self.capacity)[:, None, None, None].expand(-1, self.kv_heads, 1, self.head_dim)
            state.ring_k = state.ring_k.scatter(2, slot, k)
            state.ring_v = state.ring_v.scatter(2, slot, v)
        else:
            phi = self.feature_map_k(self._wide(k))
            state.kv, state.k = state.kv + phi.transpose(2, 3) @ self._wide(v), state.k + phi.sum(2)
        wide_q = self._wide(q)
        phi_q = self.feature_map_q(wide_q)
        numerator, denominator = phi_q @ state.kv, phi_q @ state.k[..., None]
        if not self.capacity:
            return (numerator / (denominator + LINEAR_EPSILON)).to(q.dtype)
        slots = torch.arange(self.capacity, device=q.device)[None]
        age = (position[:, None] - slots) % self.capacity
        inside = (age <= (position - base)[:, None])[:, None, None, :]
        scores = (wide_q @ self._wide(state.ring_k).transpose(2, 3)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~inside, float("-inf"))
        p = self._gate(scores.dtype) * (scores - scores.amax(-1, keepdim=True)).exp()
        y = (numerator + p @ self._wide(state.ring_v)) / (denominator + p.sum(-1, keepdim=True))
        return y.to(q.dtype)

    def _leave(self, state: LinearState, begin: torch.Tensor, end: torch.Tensor) -> None:
        """Adds the raw keys begin <= t < end [B] to the sums: one key (sliding) or a whole chunk (terraced), or none."""
        most = 1 if self.window == "sliding" else self.window_size
        if not bool((end > begin).any()):
            return
        tokens = begin[:, None] + torch.arange(most, device=begin.device)[None]
        slots = tokens % self.capacity
        k, v = self._wide(gather_tokens(state.ring_k, slots)), self._wide(gather_tokens(state.ring_v, slots))
        phi = self.feature_map_k(k) * (tokens < end[:, None])[:, None, :, None]
        state.kv, state.k = state.kv + phi.transpose(2, 3) @ v, state.k + phi.sum(2)
