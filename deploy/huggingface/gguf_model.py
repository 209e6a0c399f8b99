"""A llama-architecture GGUF file as the pieces of a Hugging Face directory, with the gguf package and numpy alone.

llama.cpp stores the rows of q and k permuted for its own RoPE order (pairs side by side); Hugging Face rotates halves,
so the permutation is undone here. Weights are de-quantized in fp32 and rounded to nearest even bf16.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from common import UsageError, require_file

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
               "output.weight": "lm_head.weight"}
CONTROL_TOKEN = 3  # tokenizer.ggml.token_type
# The pre-tokenizers that are known exactly; GGUF names them, it does not describe them.
KNOWN_PRE_TOKENIZERS = {"smollm": True}  # name -> digits are split one by one


def to_bf16_bytes(values: np.ndarray) -> bytes:
    """fp32 of any shape to bf16 bytes, nearest even. Weights are finite; a NaN would be mangled, so it is refused."""
    if not np.isfinite(values).all():
        raise UsageError("the GGUF file holds a weight that is not finite; the file is damaged")
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()


def unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """[num_heads * D, in] from llama.cpp's interleaved rotary order to Hugging Face's halves."""
    rows, columns = weight.shape
    half = rows // num_heads // 2
    return weight.reshape(num_heads, half, 2, columns).swapaxes(1, 2).reshape(rows, columns)


class GgufModel:
    """One GGUF file, opened and checked. Tensors are de-quantized one by one when asked for."""

    def __init__(self, path: Path):
        self.path = path
        try:
            reader = GGUFReader(require_file(path))
        except (ValueError, IndexError) as error:
            raise UsageError(f"{path}: not a readable GGUF file ({error})") from None
        self._fields = reader.fields
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = self.field("general.architecture")
        if architecture != "llama":
            raise UsageError(f"{path}: architecture '{architecture}'; only 'llama' GGUF files are converted here. "
                             "Give a Hugging Face directory instead")
        self.num_layers: int = self.field("llama.block_count")
        self.num_heads: int = self.field("llama.attention.head_count")
        self.num_kv_heads: int = self.field("llama.attention.head_count_kv")

    def field(self, name: str, default: Any = None) -> Any:
        if name in self._fields:
            return self._fields[name].contents()
        if default is None:
            raise UsageError(f"{self.path}: metadata '{name}' is missing")
        return default

    @property
    def tied(self) -> bool:
        return "output.weight" not in self._tensors

    def hf_name(self, name: str) -> str:
        """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; UsageError for a tensor of another model."""
        if name in OUTER_NAMES:
            return OUTER_NAMES[name]
        parts = name.split(".")
        if len(parts) == 4 and parts[0] == "blk" and parts[2] in LAYER_NAMES and parts[3] in ("weight", "bias"):
            return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
        raise UsageError(f"{self.path}: tensor '{name}' has no place in a Llama model")

    def tensor_names(self, num_layers: int) -> list[tuple[str, str]]:
        """(GGUF name, Hugging Face name) of the first num_layers layers and the outer tensors, in the file's order."""
        names = [(name, self.hf_name(name)) for name in self._tensors if name != "rope_freqs.weight"]
        return [(g, h) for g, h in names if not g.startswith("blk.") or int(g.split(".")[1]) < num_layers]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(extent) for extent in reversed(self._tensors[name].shape))

    def weights(self, name: str) -> np.ndarray:
        """One tensor in fp32 and in Hugging Face's order of rows."""
        tensor = self._tensors[name]
        values = dequantize(tensor.data, tensor.tensor_type).reshape(self.shape(name))
        if name.endswith("attn_q.weight"):
            return unpermute(values, self.num_heads)
        if name.endswith("attn_k.weight"):
            return unpermute(values, self.num_kv_heads)
        return values

    def config(self, num_layers: int) -> dict[str, Any]:
        """config.json. fp32 metadata is written with its shortest decimal form (1e-05, not 9.999999747378752e-06)."""
        hidden: int = self.field("llama.embedding_length")
        scaling = self.field("llama.rope.scaling.type", "none")
        if scaling != "none" or "rope_freqs.weight" in self._tensors:
            raise UsageError(f"{self.path}: RoPE scaling '{scaling}' is not converted; give a Hugging Face directory")
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.shape("token_embd.weight")[0],
            "hidden_size": hidden,
            "intermediate_size": self.field("llama.feed_forward_length"),
            "num_hidden_layers": num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.field("llama.rope.dimension_count", hidden // self.num_heads),
            "hidden_act": "silu",
            "max_position_embeddings": self.field("llama.context_length"),
            "rms_norm_eps": float(str(np.float32(self.field("llama.attention.layer_norm_rms_epsilon")))),
            "rope_theta": float(str(np.float32(self.field("llama.rope.freq_base", 10000.0)))),
            "rope_scaling": None,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "tie_word_embeddings": self.tied,
            "bos_token_id": self.field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self.field("tokenizer.ggml.eos_token_id"),
            "pad_token_id": self.field("tokenizer.ggml.padding_token_id",
                                       self.field("tokenizer.ggml.eos_token_id")),
            "torch_dtype": "bfloat16",
            "use_cache": True,
        }

    def generation_config(self) -> dict[str, Any]:
        config = self.config(self.num_layers)
        return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}

    def tokenizer(self) -> dict[str, Any]:
        """tokenizer.json: byte-level BPE with the GGUF's vocabulary and merges, in their order."""
        kind, pre = self.field("tokenizer.ggml.model"), self.field("tokenizer.ggml.pre", "unnamed")
        if kind != "gpt2" or pre not in KNOWN_PRE_TOKENIZERS:
            raise UsageError(f"{self.path}: tokenizer '{kind}' with pre-tokenizer '{pre}' is not converted (known: gpt2 "
                             f"with {', '.join(KNOWN_PRE_TOKENIZERS)}); give a Hugging Face directory instead")
        tokens: list[str] = self.field("tokenizer.ggml.tokens")
        types: list[int] = self.field("tokenizer.ggml.token_type")
        added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
                  "normalized": False, "special": True}
                 for i, token in enumerate(tokens) if types[i] == CONTROL_TOKEN]
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        steps = [{"type": "Digits", "individual_digits": True}] if KNOWN_PRE_TOKENIZERS[pre] else []
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]},
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                "vocab": {token: i for i, token in enumerate(tokens)},
                "merges": [pair.split(" ") for pair in self.field("tokenizer.ggml.merges")],
            },
        }

    def tokenizer_config(self) -> dict[str, Any]:
        tokens: list[str] = self.field("tokenizer.ggml.tokens")

        def named(key: str) -> str:
            return tokens[self.field(f"tokenizer.ggml.{key}_token_id", self.field("tokenizer.ggml.eos_token_id"))]

        return {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": self.field("llama.context_length"),
            "bos_token": named("bos"),
            "eos_token": named("eos"),
            "pad_token": named("padding"),
            "unk_token": named("unknown"),
            "add_bos_token": bool(self.field("tokenizer.ggml.add_bos_token", 0)),
            "clean_up_tokenization_spaces": False,
            "chat_template": self.field("tokenizer.chat_template", " ").strip() or None,
        }


def tokenizer_text(tokenizer: dict[str, Any]) -> str:
    """tokenizer.json as text; one form, so that its hash is the same on every machine."""
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n"
