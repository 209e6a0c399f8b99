"""A model as deep as Llama 3.1 70B and narrow: 80 layers, untied head, grouped queries, Llama 3.1's rope; random weights, in bf16,
in several files. Its tokenizer is SmolLM2's, so that it reads text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

LAYERS = 80
LAYERS_PER_FILE = 20
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 64, 128, 2, 1, 32
DEVIATION = 0.1  # of a weight


def write_narrow_model(folder: Path, tokenizer_of: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(tokenizer_of / name, folder)
    theirs = json.loads((tokenizer_of / "config.json").read_text())
    vocabulary = theirs["vocab_size"]
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": vocabulary, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
        "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16",
        "bos_token_id": theirs["bos_token_id"], "eos_token_id": theirs["eos_token_id"]}))
    random = torch.Generator().manual_seed(70)

    def drawn(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=random) * DEVIATION).to(torch.bfloat16)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    files = {"outer.safetensors": {"model.embed_tokens.weight": drawn(vocabulary, HIDDEN), "model.norm.weight": ones.clone(),
                                   "lm_head.weight": drawn(vocabulary, HIDDEN)}}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        files.setdefault(f"layers-{layer // LAYERS_PER_FILE}.safetensors", {}).update({
            prefix + "self_attn.q_proj.weight": drawn(HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": drawn(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": drawn(KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": drawn(HIDDEN, HEADS * HEAD_DIM),
            prefix + "mlp.gate_proj.weight": drawn(INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": drawn(INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": drawn(HIDDEN, INTERMEDIATE),
            prefix + "input_layernorm.weight": ones.clone(),
            prefix + "post_attention_layernorm.weight": ones.clone()})
    for name, tensors in files.items():
        save_file(tensors, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {tensor: name for name, tensors in files.items() for tensor in tensors}}))
