"""A model directory of any size whose weights are holes in files: its shapes are real, and it takes no disk. For whoever reads
headers alone, as a plan does, or for layers that hand on what they get, because their weights are zeros."""

from __future__ import annotations

import json
import struct
from pathlib import Path


def _write_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def write_sparse_model(folder: Path, *, layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int,
                       head_dim: int = 128, vocabulary: int = 128256) -> Path:
    """A LlamaForCausalLM in bf16, a file a layer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
        "vocab_size": vocabulary, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 128000,
        "eos_token_id": 128001}))
    files = {"outer.safetensors": {"model.embed_tokens.weight": [vocabulary, hidden], "model.norm.weight": [hidden],
                                   "lm_head.weight": [vocabulary, hidden]}}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        files[f"layer-{layer:03d}.safetensors"] = {
            prefix + "self_attn.q_proj.weight": [heads * head_dim, hidden],
            prefix + "self_attn.k_proj.weight": [kv_heads * head_dim, hidden],
            prefix + "self_attn.v_proj.weight": [kv_heads * head_dim, hidden],
            prefix + "self_attn.o_proj.weight": [hidden, heads * head_dim],
            prefix + "mlp.gate_proj.weight": [intermediate, hidden],
            prefix + "mlp.up_proj.weight": [intermediate, hidden],
            prefix + "mlp.down_proj.weight": [hidden, intermediate],
            prefix + "input_layernorm.weight": [hidden],
            prefix + "post_attention_layernorm.weight": [hidden]}
    for name, shapes in files.items():
        _write_weights(folder / name, shapes)
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {tensor: name for name, shapes in files.items() for tensor in shapes}}))
    return folder
