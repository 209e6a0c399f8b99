"""A small GPT2LMHeadModel or BertModel of transformers with random weights, and what it computes.

  transformers_outputs.py gpt2|bert DIR

Writes the model to DIR and DIR/expected.safetensors: ids and logits of GPT-2; ids, is_token and hidden states of BERT, whose second
sequence is padded on the right. Biases and norms are random too: transformers begins them at 0 and 1, where one that is left out
would not be seen. The shapes are transformers_test.cpp's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel, PreTrainedModel

LENGTH = 24


def with_random_weights(model: PreTrainedModel) -> PreTrainedModel:
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


@torch.no_grad()
def main() -> int:
    kind, out = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(11)
    ids = torch.randint(0, 50, (2, LENGTH))
    if kind == "gpt2":
        model = with_random_weights(GPT2LMHeadModel(GPT2Config(
            vocab_size=50, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)))
        save_file({name: value.detach().clone() for name, value in model.named_parameters()}, out / "model.safetensors")
        expected = {"logits": model(ids).logits}
    else:
        model = with_random_weights(BertModel(BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=LENGTH + 4), add_pooling_layer=False))
        model.save_pretrained(out)
        is_token = torch.ones_like(ids)
        is_token[1, LENGTH - 9:] = 0
        expected = {"hidden": model(ids, attention_mask=is_token).last_hidden_state, "is_token": is_token}
    save_file({"ids": ids, **{name: value.contiguous() for name, value in expected.items()}}, out / "expected.safetensors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
