"""What a measurement of tests/bench/kernels must compute and move at the least, and what it needs to fit in memory, by the
formulas of kernels/README.md, "What the bench counts". GB/s and TFLOP/s of the bench are these over the measured time."""

from __future__ import annotations

from dataclasses import dataclass

DIRECTIONS = ("forward", "backward", "training", "decode")
LAYOUTS = ("terraced", "sliding", "none")
ELEMENT = {"bf16": 2, "fp32": 4}  # bytes
FP32, BOTH_DTYPES = 4, 6
MOST_STEPS_A_ROUND = 4096
Cost = tuple[float, float]  # FLOPs, bytes


@dataclass(frozen=True)
class Size:
    B: int
    H: int
    G: int
    T: int
    D: int

    def elements(self, heads: int) -> int:
        return self.B * heads * self.T * self.D


@dataclass(frozen=True)
class Variant:
    """What is swept beside heads, direction and length: F features, f columns of the layer (0: none), W window, S sinks."""

    layout: str
    map: str
    F: int
    f: int
    W: int
    S: int
    key_maps: str
    dtype: str

    def share(self, size: Size) -> float:
        """Key maps, and states, for one query head."""
        return size.G / size.H if self.key_maps == "kv_head" and self.f else 1.0

    def state_elements(self, size: Size) -> float:
        return self.share(size) * self.F * (size.D + 1)

    def steps_a_round(self) -> int:
        """A terraced ring flushes a chunk every W steps; of wider windows than the limit the median leaves the flush out."""
        return min(self.W, MOST_STEPS_A_ROUND) if self.layout == "terraced" else 1

    def named(self) -> dict[str, object]:
        """As a line has it."""
        return {"layout": self.layout, "map": self.map, "features": self.F, "window": self.W, "sinks": self.S,
                "key_maps": self.key_maps, "dtype": self.dtype}


def window_pairs(variant: Variant, tokens: int) -> int:
    """Pairs of a query and a key in its window or a sink, over the queries of one head."""
    if variant.layout == "none":
        return 0
    W = variant.W
    begins = (max(0, i - W + 1 if variant.layout == "sliding" else (i // W - 1) * W) for i in range(tokens))
    return sum(i + 1 - begin + min(variant.S, begin) for i, begin in enumerate(begins))


def hybrid_cost(size: Size, variant: Variant, direction: str) -> Cost:
    e, share, T, D, F, f, W = ELEMENT[variant.dtype], variant.share(size), size.T, size.D, variant.F, variant.f, variant.W
    heads, maps = size.B * size.H, (1 + share) * size.H * D * f * FP32
    if direction == "decode":
        keys = {"none": 0, "sliding": min(W + variant.S, T), "terraced": min(1.5 * W + 0.5 + variant.S, T)}[variant.layout]
        writes = 1 / W if variant.layout == "terraced" else 1
        return (heads * D * (4 * keys + (1 + share) * 2 * (F + f)),
                heads * variant.state_elements(size) * FP32 * (1 + writes) + 2 * size.B * size.G * keys * D * e + maps)
    pairs, rows = window_pairs(variant, T), size.elements(size.H) + size.elements(size.G)
    forward = heads * D * (4 * pairs + T * (1 + share) * (2 * F + 2 * f)), 2 * rows * e + maps
    backward = heads * D * (10 * pairs + T * ((4 + 6 * share) * F + (1 + share) * 7 * f)), 4 * rows * e + 2 * maps
    return of_direction(direction, forward, backward)


def softmax_cost(size: Size, dtype: str, direction: str) -> Cost:
    heads, rows = size.B * size.H, size.elements(size.H) + size.elements(size.G)
    if direction == "decode":
        return heads * 4 * size.T * size.D, 2 * size.elements(size.G) * ELEMENT[dtype]
    pairs = size.T * (size.T + 1) / 2
    return of_direction(direction, (heads * 4 * pairs * size.D, 2 * rows * ELEMENT[dtype]),
                        (heads * 10 * pairs * size.D, 4 * rows * ELEMENT[dtype]))


def of_direction(direction: str, forward: Cost, backward: Cost) -> Cost:
    return {"forward": forward, "backward": backward, "training": (forward[0] + backward[0], forward[1] + backward[1])}[direction]


def shared_need(size: Size, direction: str) -> dict[str, float]:
    q = size.elements(size.H) / (size.T if direction == "decode" else 1)
    need = {"q, k, v": (q + 2 * size.elements(size.G)) * BOTH_DTYPES}
    return need | ({"dy": q * BOTH_DTYPES} if direction in ("backward", "training") else {})


def hybrid_need(size: Size, variant: Variant, direction: str) -> float:
    """Outputs, what is kept for the backward, gradients, states; a prefill and a backward map every key once."""
    heads, of_value = size.B * size.H, ELEMENT[variant.dtype] + FP32
    states, features = heads * variant.state_elements(size) * FP32, heads * size.T * variant.F * FP32
    if direction == "decode":
        return 2 * states + features
    rows = size.elements(size.H)
    return rows * of_value + states + (0 if direction == "forward" else (rows + 2 * size.elements(size.G)) * of_value + features)


def softmax_need(size: Size, direction: str, is_quadratic: bool) -> float:
    """K and V expanded to the query heads, y, every gradient; T x T scores, masked ones, weights, and the gradients of two."""
    heads = size.B * size.H
    if direction == "decode":
        return 2 * size.elements(size.H) * FP32 + heads * size.T * 3 * FP32
    linear, maps = (4, 3) if direction == "forward" else (8, 5)
    return size.elements(size.H) * FP32 * linear + (maps * heads * size.T ** 2 * FP32 if is_quadratic else 0)


def misfit(need: dict[str, float], memory: int) -> str:
    """Empty if it fits into nine tenths; the rest is the program's own."""
    total = sum(need.values())
    terms = " + ".join(f"{what} {part / 1e9:.2f} GB" for what, part in need.items())
    return "" if total <= 0.9 * memory else f"needs {total / 1e9:.2f} GB ({terms}) of {memory / 1e9:.2f} GB"
