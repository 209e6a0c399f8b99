"""A small GPT2LMHeadModel of transformers with random weights, and its logits.

  gpt2_logits.py DIR

Writes DIR/model.safetensors (the model's own names) and DIR/expected.safetensors (ids and logits). Biases and norms are random
too: transformers begins them at 0 and 1, where one that is left out would not be seen. The shape is gpt2_test.cpp's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel


def main() -> int:
    out = Path(sys.argv[1])
    torch.manual_seed(11)
    config = GPT2Config(vocab_size=50, n_positions=24, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        ids = torch.randint(0, config.vocab_size, (2, 24))
        logits = model(ids).logits
    weights = {name: value.detach().clone() for name, value in model.named_parameters()}
    save_file(weights, out / "model.safetensors")
    save_file({"ids": ids, "logits": logits.contiguous()}, out / "expected.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
