"""Opponent of a transfer step: plain PyTorch, bf16 weights, SDPA teacher, T x T fp32 student maps, backward per layer.

One repeat is one optimizer step of all layers: the teacher's forward without autograd; in each layer the student's
output, 1000 x MSE and its backward at once (the graph is freed layer by layer); clip 1.0 and AdamW a layer.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from protocol import common_arguments, load_ids, serve
from quadratic import QuadraticStudent, expand_heads


def main() -> None:
    options = common_arguments(__doc__).parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    students: list[QuadraticStudent] = []
    scale = {"value": 1.0}
    errors: list[float] = []

    def attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
        heads = query.shape[1]
        teacher = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
        with torch.enable_grad():
            student = students[module.layer_idx](query, expand_heads(key, heads), expand_heads(value, heads))
            loss = F.mse_loss(student, teacher.float())
            (loss * 1000 * scale["value"]).backward()
        errors.append(loss.item())
        return teacher.transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("transfer_opponent", attention)
    model = AutoModel.from_pretrained(options.model, dtype=getattr(torch, options.dtype), attn_implementation="sdpa").eval()
    model.requires_grad_(False)
    model.set_attn_implementation("transfer_opponent")
    config = model.config
    for _ in range(config.num_hidden_layers):
        students.append(QuadraticStudent(config.num_attention_heads, config.head_dim))
    optimizers = [torch.optim.AdamW(s.parameters(), lr=1e-2, weight_decay=0.0, fused=True) for s in students]
    ids = load_ids(options, config.vocab_size)
    batches = ids.split(options.micro_batch)
    scale["value"] = 1.0 / len(batches)

    def repeat() -> dict:
        errors.clear()
        with torch.no_grad():
            for batch in batches:
                model(batch, use_cache=False)
        for student, optimizer in zip(students, optimizers):
            torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"mse_mean": sum(errors) / len(errors)}

    serve(repeat, {"tokens": ids.numel(), "threads": torch.get_num_threads()})


if __name__ == "__main__":
    main()
