"""Autograd of hedgerow's operator hybrid_attention: its two directions (torch.ops.hedgerow.hybrid_attention_forward and
_backward) put behind one function. Of PyTorch alone, so that a bench on a bare machine loads this file by its path.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

PARAMETERS = ("layer_q", "bias_q", "layer_k", "bias_k", "window_factors")


def hybrid_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, fp32_output: bool = False,
                     **told: Any) -> torch.Tensor:
    """The operator hybrid_attention, differentiable in q, k, v and what `told` has of PARAMETERS. The maps' gradients need what
    the forward saves, so where one is wanted hybrid_attention_forward computes y."""
    parameters = [told.get(name) for name in PARAMETERS]
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, *parameters))
    if not learns or not hasattr(torch.ops.hedgerow, "hybrid_attention_forward"):
        return torch.ops.hedgerow.hybrid_attention(q, k, v, fp32_output=fp32_output, **told)
    of_inputs = any(x.requires_grad for x in (q, k, v))
    fused = q.is_cuda and not torch.compiler.is_compiling() and torch.ops.hedgerow.hybrid_is_fused(
        q, k, v, input_gradients=of_inputs, **told)
    options = {name: value for name, value in told.items() if name not in PARAMETERS}
    return torch.ops.hedgerow.hybrid_attention_forward(q, k, v, fp32_output, fused, *parameters, **options)[0]


def keep_for_backward(ctx, inputs, output) -> None:
    q, k, v, fp32_output, ctx.fused, *rest = inputs
    ctx.parameters = [index for index, x in enumerate(rest[:len(PARAMETERS)]) if x is not None]
    ctx.options = rest[len(PARAMETERS):]
    y, y_saved, *saved = output
    ctx.save_for_backward(q, k, v, *(rest[index] for index in ctx.parameters), y_saved if y_saved.numel() else y, *saved)
    ctx.set_materialize_grads(False)


def backward_by_operator(ctx, dy, *_) -> tuple:
    if dy is None:
        return (None,) * len(ctx.needs_input_grad)
    q, k, v, *rest = ctx.saved_tensors
    given = dict(zip(ctx.parameters, rest))
    kept = rest[len(given):]
    wanted = ctx.needs_input_grad
    needs = [*wanted[:3], *wanted[5:5 + len(PARAMETERS)]]
    told = {name: given.get(index) for index, name in enumerate(PARAMETERS)}
    schema = torch.ops.hedgerow.hybrid_attention_forward.default._schema.arguments[5 + len(PARAMETERS):]
    told |= {argument.name: value for argument, value in zip(schema, ctx.options)}
    found = torch.ops.hedgerow.hybrid_attention_backward(dy, q, k, v, *kept, fused=ctx.fused, needs=needs, **told)
    found = [gradient if need else None for gradient, need in zip(found, needs)]
    return (*found[:3], None, None, *found[3:], *[None] * len(ctx.options))


@functools.cache
def register_gradients() -> None:
    """Puts the two directions behind autograd, once a process: each export brings this file. A library of before 2026-12 has
    gradients of its own."""
    operators = torch.ops.hedgerow
    if hasattr(operators, "hybrid_is_fused") and "has_gradients" not in vars(operators):
        torch.library.register_autograd("hedgerow::hybrid_attention_forward", backward_by_operator,
                                        setup_context=keep_for_backward)
        operators.has_gradients = True
