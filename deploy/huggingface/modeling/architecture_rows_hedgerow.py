"""Every family of teachers, as storage/model/architecture.hpp has it and says what it means; 0: none.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import NamedTuple


class ArchitectureRow(NamedTuple):
    num_key_value_heads: int = 0
    head_dim: int = 0
    bias: str = "none"
    reads_mlp_bias: bool = False
    ties_embeddings: bool = False
    rms_norm_eps: float = 1e-06
    rope_theta: float = 10000.0
    reads_no_rope_layers: bool = False
    sliding: str = "never"
    sliding_window: int = 0
    norm_place: str = "before"
    qk_norm: str = "none"


ARCHITECTURES = {
    "llama": ArchitectureRow(bias="by_key", reads_mlp_bias=True),
    "mistral": ArchitectureRow(num_key_value_heads=8, sliding="all_layers", sliding_window=4096),
    "qwen2": ArchitectureRow(num_key_value_heads=32, bias="qkv", sliding="by_layer", sliding_window=4096),
    "qwen3": ArchitectureRow(num_key_value_heads=32, head_dim=128, bias="by_key", sliding="by_layer", sliding_window=4096, qk_norm="head"),
    "olmo2": ArchitectureRow(bias="by_key", rms_norm_eps=1e-05, norm_place="after", qk_norm="width"),
    "smollm3": ArchitectureRow(num_key_value_heads=4, bias="by_key", reads_mlp_bias=True, ties_embeddings=True, rope_theta=2e+06, reads_no_rope_layers=True, sliding="without_rope"),
}
