"""LoLCATs' hybrid attention as its authors compute it: T x T maps in fp32, Hedgehog softmax features, a sliding window."""

from __future__ import annotations

import math

import torch
from torch import nn


class QuadraticStudent(nn.Module):
    """Feature maps and window factors of one layer; fp32 parameters."""

    def __init__(self, heads: int, head_dim: int, projected_dim: int = 32, window_size: int = 64):
        super().__init__()
        bound = math.sqrt(6 / (head_dim * projected_dim))
        start = torch.empty(heads, head_dim, projected_dim).uniform_(-bound, bound)
        self.q_map, self.k_map = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        self.window_factors = nn.Parameter(torch.full((1, heads, 1, 1), math.log(0.1 / 0.9)))
        self.window_size = window_size

    @staticmethod
    def features(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        z = torch.einsum("bhtd,hdf->bhtf", x, weight)
        return torch.cat((z.softmax(-1), (-z).softmax(-1)), dim=-1).clamp(min=1e-12)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v [B, H, T, D] in bf16 (heads expanded) -> y [B, H, T, D] in fp32."""
        q, k, v = q.float(), k.float(), v.float()
        length = q.shape[2]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        window = causal & ~torch.ones_like(causal).tril(-self.window_size)
        scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])).masked_fill(~window, -1e8)
        softmax = torch.sigmoid(self.window_factors) * (scores - scores.amax(-1, keepdim=True)).exp()
        linear = self.features(q, self.q_map) @ self.features(k, self.k_map).transpose(2, 3)
        weights = softmax.masked_fill(~window, 0) + linear.masked_fill(window | ~causal, 0)
        return (weights @ v) / weights.sum(-1, keepdim=True)


def expand_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.repeat_interleave(heads // x.shape[1], dim=1)
