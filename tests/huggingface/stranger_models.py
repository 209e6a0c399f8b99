"""Tiny models and tokenizers in the forms in which strangers' files come, for strangers_test.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXT = ("The quick brown fox jumps over the lazy dog and was seen by the old hacker, who counted: one, two, three. "
        "A daemon is a program that waits for requests; over the years it was written anew, and nobody knew why.\n") * 40
SPECIALS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<bosR1>", "<|eot|>"]  # ids 0 to 5
CONFIG = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              head_dim=16, vocab_size=512, max_position_embeddings=2048, bos_token_id=0, eos_token_id=1)
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_level(begin: str = "") -> Tokenizer:
    """Llama 3's kind: byte-level BPE; `begin`: a special token that its post-processor puts before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if begin:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, tokenizer.token_to_id(begin))])
    return tokenizer


def sentence_piece() -> Tokenizer:
    """Llama 2's kind: words begin with U+2581, the decoder drops the first space of what it is given."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<s>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?=\u2581)"), "merged_with_next")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIALS, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def settings(**more: Any) -> dict[str, Any]:
    return {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
            "model_max_length": 2048, "chat_template": CHATML, **more}


def random_model(config: transformers.PretrainedConfig) -> transformers.PreTrainedModel:
    """Random biases and norms too, and a head whose logits differ more than rounding moves them."""
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator)) if parameter.dim() == 1 else \
                parameter.mul_(2)
    return model


def write_tokenizer(directory: Path, tokenizer: Tokenizer, **more: Any) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings(**more)))


def write_model(directory: Path, config: transformers.PretrainedConfig | None = None, tokenizer: Tokenizer | None = None,
                **more: Any) -> Path:
    """A complete model directory; `more` goes into tokenizer_config.json."""
    random_model(config or transformers.LlamaConfig(**CONFIG)).save_pretrained(directory)
    write_tokenizer(directory, tokenizer or byte_level(), **more)
    return directory
