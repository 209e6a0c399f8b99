"""Opponent of a LoRA step: transformers and PEFT, bf16 base, the student's attention with T x T fp32 maps.

One repeat is one optimizer step: LoRA r 8, alpha 16 on q, k, v, o (fp32), cross-entropy over all positions, gradient
checkpointing off (the faster way where memory allows), clip 1.0, AdamW 1e-4.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from protocol import common_arguments, load_ids, serve
from quadratic import QuadraticStudent, expand_heads


def main() -> None:
    options = common_arguments(__doc__).parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    students: list[QuadraticStudent] = []

    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        heads = query.shape[1]
        y = students[module.layer_idx](query, expand_heads(key, heads), expand_heads(value, heads))
        return y.to(query.dtype).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("lora_opponent", attention)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa")
    model.set_attn_implementation("lora_opponent")
    config = model.config
    for _ in range(config.num_hidden_layers):
        students.append(QuadraticStudent(config.num_attention_heads, config.head_dim).requires_grad_(False))
    model = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, task_type="CAUSAL_LM",
                                             target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)
    ids = load_ids(options, config.vocab_size)
    batches = ids.split(options.micro_batch)

    def repeat() -> dict:
        total = 0.0
        for batch in batches:
            loss = model(batch, labels=batch, use_cache=False).loss / len(batches)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return {"loss": total}

    serve(repeat, {"tokens": ids.numel(), "threads": torch.get_num_threads()})


if __name__ == "__main__":
    main()
