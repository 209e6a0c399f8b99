"""Feature maps of the student, in plain PyTorch. Letters as in hybrid_hedgerow.py."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from .feature_map_rows_hedgerow import FEATURE_MAPS

if TYPE_CHECKING:
    from .configuration_hedgerow import HedgerowConfig

FEATURE_CLAMP = 1e-12
# phi(z) before the clamp, t being the attention's temperature: kernels/maps. tests/kernels/ops_test.py reads it too.
ACTIVATIONS = {
    "hedgehog_softmax": lambda z, t: z.softmax(-1),
    "hedgehog_exp": lambda z, t: (z - z.amax(-1, keepdim=True)).exp(),
    "relu": lambda z, t: F.relu(z),
    "elu_plus_one": lambda z, t: 1 + F.elu(z),
    "exp": lambda z, t: (z * t).exp(),
    "identity": lambda z, t: z,
}


class FeatureMapProjection(nn.Module):
    """The weights of one feature map under LoLCATs' names: mlp.layer [N, D, f], mlp.bias [N, f]; N = H of queries, U of keys."""

    def __init__(self, heads: int, head_dim: int, projected_dim: int, bias: bool):
        super().__init__()
        self.layer = nn.Parameter(torch.empty(heads, head_dim, projected_dim))
        self.bias = nn.Parameter(torch.empty(heads, projected_dim)) if bias else None


def taylor_features(x: torch.Tensor) -> torch.Tensor:
    """1, x and x_i x_j (i <= j; squares by 1 / sqrt(2)): phi(q).phi(k) = 1 + q.k + (q.k)^2 / 2. [.., d] -> [.., F]."""
    i, j = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    products = x[..., i] * x[..., j] * torch.where(i == j, x.new_tensor(0.5**0.5), x.new_tensor(1.0))
    return torch.cat((torch.ones_like(x[..., :1]), x, products), dim=-1)


class FeatureMap(nn.Module):
    """phi(x) = activation(x W + b) per head of the map (Hedgehog eq. 4, 5; T2R). [B, N, T, D] -> [B, N, T, F].

    Two stand for exp(q.k / sqrt(D)) without learning, with x' = D^-1/4 x: positive random features (FAVOR+; W is Omega)
    and the Taylor series. A query's random features are brought to a largest of 1 / sqrt(F), a key's keep their size.
    """

    def __init__(self, config: HedgerowConfig, of_queries: bool):
        super().__init__()
        spec = config.attention
        self.row = FEATURE_MAPS[spec["feature_map"]]
        self.negation, self.temperature = spec["negation"], spec["temperature"]
        self.of_queries = of_queries
        self.mlp = None
        if spec["projection"]:
            heads = config.num_attention_heads if of_queries else config.num_key_maps
            self.mlp = FeatureMapProjection(heads, config.head_dim, config.projected_dim, spec["bias"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.row.one_draw or self.row.series:
            x = x * x.shape[-1] ** -0.25
        half_square = x.pow(2).sum(-1, keepdim=True) / 2
        if self.mlp is not None:
            x = torch.einsum("bhtd,hdf->bhtf", x, self.mlp.layer.to(x.dtype))
            if self.mlp.bias is not None:
                x = x + self.mlp.bias.to(x.dtype)[:, None]
        if self.row.one_draw:
            return (x - (x.amax(-1, keepdim=True) if self.of_queries else half_square)).exp() / math.sqrt(x.shape[-1])
        if self.row.series:
            return taylor_features(x)
        phi = self._activate(x)
        return phi.clamp(min=FEATURE_CLAMP) if self.row.clamped else phi

    def _activate(self, z: torch.Tensor) -> torch.Tensor:
        activation = ACTIVATIONS[self.row.activation]
        positive = activation(z, self.temperature)
        return torch.cat((positive, activation(-z, self.temperature)), dim=-1) if self.negation else positive
