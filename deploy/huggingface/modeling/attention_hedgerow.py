"""Attention of one layer of an export: the teacher's projections around the student's hybrid or, in layers that kept it, softmax.

Letters as in hybrid_hedgerow.py; M hidden_size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from .cache_hedgerow import HedgerowCache, SoftmaxState, Step
from .configuration_hedgerow import HedgerowConfig
from .feature_maps_hedgerow import FeatureMap
from .hybrid_hedgerow import HybridInTorch, gather_tokens, repeat_heads
from .layers_hedgerow import HedgerowRMSNorm, apply_rope
from .operators_hedgerow import decode_by_operators, have_operators, hybrid_by_operators, operators_take, prefill_by_operators
from .option_rows_hedgerow import OPTIONS


class HedgerowAttention(nn.Module, HybridInTorch):
    """Projections of the teacher, attention of the student (or of the teacher, in layers that kept it)."""

    def __init__(self, config: HedgerowConfig, layer_idx: int):
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.heads, self.kv_heads, self.head_dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        hidden, o_bias = config.hidden_size, config.o_bias
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=config.qkv_bias)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=config.qkv_bias)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=o_bias)
        self.qk_norm, self.has_rope = config.body.qk_norm, config.has_rope(layer_idx)
        if self.qk_norm != "none":
            wide = self.qk_norm == "width"  # one norm over all heads
            self.q_norm = HedgerowRMSNorm(self.head_dim * (self.heads if wide else 1), config.rms_norm_eps)
            self.k_norm = HedgerowRMSNorm(self.head_dim * (self.kv_heads if wide else 1), config.rms_norm_eps)
        self.softmax = config.is_softmax_layer(layer_idx)
        for name in OPTIONS:  # those of the map are its own
            setattr(self, name, config.attention[name])
        self.key_heads = config.num_key_maps
        # Slots of the ring of raw keys; without a window one, which is never read, as decode_step has it.
        self.capacity = max({"none": 0, "sliding": 1, "terraced": 2}[self.window] * self.window_size, 1)
        self.by_operators = not self.softmax and have_operators()
        if not self.softmax:
            self.feature_map_q = FeatureMap(config, of_queries=True)
            self.feature_map_k = FeatureMap(config, of_queries=False)
            if self.window != "none":
                self.window_factors = nn.Parameter(torch.zeros(1, self.heads, 1, 1))

    def forward(self, hidden_states: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, step: Step,
                cache: HedgerowCache | None) -> torch.Tensor:
        """[B, T, M] -> [B, T, M]."""
        batch, length, _ = hidden_states.shape
        q, k = self.q_proj(hidden_states), self.k_proj(hidden_states)
        if self.qk_norm == "width":
            q, k = self.q_norm(q), self.k_norm(k)
        q = q.view(batch, length, self.heads, self.head_dim)
        k = k.view(batch, length, self.kv_heads, self.head_dim)
        v = self.v_proj(hidden_states).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.transpose(1, 2), k.transpose(1, 2)
        if self.has_rope:
            q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        attend = self._softmax_attention if self.softmax else self._hybrid_attention
        y = attend(q, k, v, step, cache) if step.packed is None else step.packed.apart(attend, q, k, v)
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
        if not self.recall_cache:
            return self._hybrid(q, k, v, step, cache)
        with torch.autocast(q.device.type, enabled=False):  # bf16 products would choose other keys
            return self._hybrid(q, k, v, step, cache)

    def _hybrid(self, q, k, v, step: Step, cache: HedgerowCache | None) -> torch.Tensor:
        state = None if cache is None else cache.layers[self.layer_idx]
        by_operators = self.by_operators and operators_take(self, q, k, v, with_state=cache is not None)
        if state is not None and step.one_each:
            y = decode_by_operators(self, q, k, v, state, step.seen) if by_operators else self._decode(q, k, v, state, step)
            return y.to(q.dtype)
        q_local, k_local, v_local, begin, base = self._localize(q, k, v, state, step)
        if by_operators and state is None and not step.empty_rows:
            y = hybrid_by_operators(self, q_local, k_local, v_local)
            if cache is not None:
                cache.layers[self.layer_idx] = prefill_by_operators(self, k_local, v_local, step.count_to_read)
        elif self.recall_cache:
            y, state_after = self._chunked_with_recall(q_local, k_local, v_local, state, step.seen, base, step.count)
            if cache is not None:
                cache.layers[self.layer_idx] = state_after
        else:  # also tokens that continue a state, several at once
            y, phi_k = self._chunked(q_local, k_local, v_local, state, base)
            if cache is not None:
                cache.layers[self.layer_idx] = self._advance(phi_k, k_local, v_local, state, begin + step.count, base)
        if step.whole and state is None:
            return y.to(q.dtype)
        # Column c of a row is its local token begin + (c - first); padding columns read some real one, harmlessly.
        columns = torch.arange(q.shape[2], device=q.device)[None] - step.first[:, None] + begin[:, None]
        return gather_tokens(y, columns.clamp(0, y.shape[2] - 1)).to(q.dtype)
