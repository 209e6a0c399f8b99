"""RMS norm and rotary positions of the bodies, as transformers computes them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from .configuration_hedgerow import HedgerowConfig


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
