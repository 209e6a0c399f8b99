"""The hybrid by hedgerow's own kernels, where libhedgerow_ops.so has registered them as torch.ops.hedgerow.

HEDGEROW_OPS=/path/to/libhedgerow_ops.so loads it when a model is made; HEDGEROW_OPS=off forbids the operators even if a program
has loaded them; unset, they are used if they are there. Everything else goes by hybrid_hedgerow.py, which gives the same
logits up to rounding. Letters as there.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from transformers.utils import logging

from .cache_hedgerow import LinearState
from .gradients_hedgerow import hybrid_attention, register_gradients
from .option_rows_hedgerow import OPTIONS

logger = logging.get_logger("transformers.hedgerow")  # of whose verbosity transformers.logging is the master
DTYPES = (torch.float32, torch.bfloat16)
DEVICES = ("cpu", "cuda")


def have_operators() -> bool:
    """Whether models made now use the operators. Says which it is, once for each answer."""
    asked = os.environ.get("HEDGEROW_OPS", "")
    if asked == "off":
        say_once("in plain PyTorch, as HEDGEROW_OPS=off asks")
        return False
    if asked and not registered():
        if not os.path.isfile(asked):  # the loader's own words for it are lost among its other reasons
            warn_once(f"HEDGEROW_OPS={asked}: no such file",
                      "name libhedgerow_ops.so as it was built (CMake target hedgerow_ops)")
            return False
        try:
            torch.ops.load_library(asked)
        except OSError as error:
            warn_once(f"HEDGEROW_OPS={asked} cannot be loaded ({str(error).splitlines()[0]})",
                      "the library belongs to one version of PyTorch: build it against this one")
            return False
    if not registered():
        say_once("in plain PyTorch; HEDGEROW_OPS=/path/to/libhedgerow_ops.so would use hedgerow's kernels")
        return False
    register_gradients()
    say_once("by hedgerow's kernels (torch.ops.hedgerow)")
    return True


def registered() -> bool:
    return hasattr(torch.ops.hedgerow, "hybrid_attention")


@functools.cache  # every layer asks
def say_once(how: str) -> None:
    logger.info(f"hedgerow: attention is computed {how}")


@functools.cache
def warn_once(what: str, remedy: str) -> None:
    logger.warning(f"hedgerow: {what}, so attention is computed in plain PyTorch; {remedy}, or set HEDGEROW_OPS=off")


def operators_take(layer, *tensors: torch.Tensor, with_state: bool) -> bool:
    """Whether the operators compute this. They keep no graph through a state, which is for generation, nor through a
    recall_cache."""
    for name in later_options(layer):
        if not knows(name):
            warn_once(f"the library of HEDGEROW_OPS knows no {name}", "build it from a later hedgerow")
            return False
    first = tensors[0]
    if first.device.type not in DEVICES or first.dtype not in DTYPES or any(x.dtype != first.dtype for x in tensors):
        return False
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in (*tensors, *layer.parameters()))
    return not ((with_state or layer.recall_cache) and learns)


@functools.cache
def knows(argument: str) -> bool:
    return any(each.name == argument for each in torch.ops.hedgerow.decode_step.default._schema.arguments)


def later_options(layer) -> list[str]:
    """Those of the layer's options that earlier libraries do not have."""
    return [name for name, row in OPTIONS.items() if row.later and layer.config.attention[name] != row.default]


def arguments_of(layer) -> dict[str, Any]:
    """What every operator is told of the layer's attention."""
    spec = layer.config.attention
    found = {name: spec[name] for name, row in OPTIONS.items() if not row.later}
    found |= {name: spec[name] for name in later_options(layer)}
    found["window_factors"] = getattr(layer, "window_factors", None)
    for side, feature_map in (("q", layer.feature_map_q), ("k", layer.feature_map_k)):
        if feature_map.mlp is not None:
            found[f"layer_{side}"], found[f"bias_{side}"] = feature_map.mlp.layer, feature_map.mlp.bias
    return found


def hybrid_by_operators(layer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [B, H, L, D], k, v [B, G, L, D], every row from its first token on -> y [B, H, L, D] of q's dtype."""
    return hybrid_attention(q, k, v, **arguments_of(layer))


def prefill_by_operators(layer, k: torch.Tensor, v: torch.Tensor, count: torch.Tensor) -> LinearState:
    """The state after each row's first `count` [B] tokens, each at least 1; on the CPU, since the operator reads them."""
    found = torch.ops.hedgerow.prefill_state(k, v, count, num_heads=layer.heads, **arguments_of(layer))
    kv, k_sum, ring_k, ring_v, _, *rest = found
    sinks = (rest.pop(0), rest.pop(0)) if layer.num_sinks else (None, None)
    return LinearState(kv, k_sum, ring_k, ring_v, *sinks, *rest)


def decode_by_operators(layer, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, state: LinearState,
                        seen: torch.Tensor) -> torch.Tensor:
    """One token a row, q [B, H, 1, D], k and v [B, G, 1, D], after `seen` [B]; the state's tensors change in place."""
    positions = seen.clone()  # the operator counts too, and all layers share what they are given
    recalled = (state.recalled_k, state.recalled_v, state.recalled) if layer.recall_cache else ()
    y = torch.ops.hedgerow.decode_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], state.kv, state.k, state.ring_k, state.ring_v,
                                       positions, state.sink_k, state.sink_v, *recalled, **arguments_of(layer))
    return y[:, :, None]
