"""The hybrid attention alone, forward and backward with all its gradients: against T x T maps, against the chunked form in batched
products, against softmax attention by LibTorch, and its own growth with the length. SmolLM2's shape: 9 query and 3 kv heads,
head_dim 64, 64 features, window 64; bf16; one sequence from T = 2,048 on, 2,048 tokens below."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

from bench_common import Context, Row, against, require_packages

KERNELS = Path(__file__).resolve().parent / "kernels"
LAYOUTS = ("terraced", "sliding")
CHUNKED_GOAL, CHUNKED_LENGTHS = "<= 0.5", (512, 1024, 2048, 8192, 32768)
QUADRATIC_GOALS = {1024: 1 / 15, 8192: 1 / 100}
SOFTMAX_GOALS = {8192: 1 / 6, 32768: 1 / 15}
GROWTH_LENGTHS = (8192, 131072)
FORM_LENGTHS = (512, 2048)
# Of a form's time over the plain one's: 4 sinks; a key map a kv head for a transfer, for all gradients, for decode steps.
FORM_GOALS = {("4 sinks", "maps"): "<= 1.03", ("4 sinks", "all"): "<= 1.03", ("4 sinks", "decode"): "<= 1.03",
              ("a key map a kv head", "maps"): "<= 1", ("a key map a kv head", "all"): "<= 1",
              ("a key map a kv head", "decode"): "<= 1"}
FORM_WORK = {"maps": "a transfer's forward and backward", "all": "forward and backward with all gradients",
             "decode": "64 decode steps"}


def _lines(*command: str | Path) -> Iterator[dict[str, Any]]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command[:2]))} exits {done.returncode}: {done.stderr.strip()[-300:]}")
    return (json.loads(line) for line in done.stdout.splitlines() if line)


def _kernels(context: Context, lengths: tuple[int, ...], opponent: str, repeats: int) -> Iterator[dict[str, Any]]:
    yield from _lines(context.program("kernels_bench"), "--entries", "hybrid_forward_backward", "--gradients", "all", "--opponents",
                      opponent, "--repeats", str(repeats), "--lengths", *map(str, lengths))


def attention(context: Context) -> Iterator[Row]:
    for length, goal in () if context.is_quick else QUADRATIC_GOALS.items():
        for line in _kernels(context, (length,), "quadratic", context.repeats):
            yield against(f"hybrid forward and backward, {line['layout']}, T = {length:,}", line["median_ms"], "ms",
                          f"<= {goal:.4f}", f"{line['opponent']}, autograd", line["opponent_ms"])
    lengths = CHUNKED_LENGTHS[:-1] if context.is_quick else CHUNKED_LENGTHS
    for line in _kernels(context, lengths, "chunked", context.repeats):
        yield against(f"hybrid forward and backward, {line['layout']}, T = {line['T']:,}", line["median_ms"], "ms", CHUNKED_GOAL,
                      line["opponent"], line["opponent_ms"])
    if not context.is_quick:
        yield from _softmax(context)
        yield from _growth(context)


def forms(context: Context) -> Iterator[Row]:
    """Sinks, and key maps of kv heads, beside the form without, in turns."""
    lines = list(_lines(context.program("kernels_bench"), "--entries", "forms", "--repeats", str(context.repeats), "--lengths",
                        *map(str, FORM_LENGTHS)))
    for line in lines:
        what, shape = line["gradients"], f"{line['layout']}, T = {line['T']:,}"
        if what == "state":
            if line["name"] == "a key map a kv head" and shape == f"{LAYOUTS[0]}, T = {FORM_LENGTHS[0]:,}":
                yield against("bytes of kv_state and k_state, a key map a kv head", line["bytes"], "B", "<= 0.4",
                              line["opponent"], line["opponent_bytes"])
            continue
        yield against(f"{line['name']}: {FORM_WORK[what]}, {shape}", line["median_ms"], "ms", FORM_GOALS[line["name"], what],
                      line["opponent"], line["opponent_ms"])


def _softmax(context: Context) -> Iterator[Row]:
    require_packages("torch")
    lines = _lines(sys.executable, KERNELS, "--library", context.program("libhedgerow_ops.so"), "--json", "--device", "cpu",
                   "--direction", "training", "--heads", "9:3", "--head-dim", "64", "--features", "64", "--window", "64",
                   "--layout", ",".join(LAYOUTS), "--dtype", "bf16",
                   "--batch-tokens", str(min(SOFTMAX_GOALS)), "--lengths", ",".join(map(str, SOFTMAX_GOALS)),
                   "--repeats", str(context.repeats))
    for line in lines:
        if line.get("event") == "refused" or line.get("event") == "measured" and line["softmax"] is None:
            raise RuntimeError(f"T = {line['length']:,}, {line['layout']}: {line.get('reason', 'no softmax ran')}")
        if line.get("event") != "measured":
            continue
        yield against(f"hybrid forward and backward, {line['layout']}, T = {line['length']:,}", line["ms"], "ms",
                      f"<= {SOFTMAX_GOALS[line['length']]:.4f}", f"LibTorch's softmax attention, {line['softmax']['name']}",
                      line["softmax"]["ms"])


def _growth(context: Context) -> Iterator[Row]:
    """A token's time and memory at the long length over those at the short one: 1 if linear, 16 if quadratic."""
    lines = list(_kernels(context, GROWTH_LENGTHS, "none", context.repeats))
    for layout in LAYOUTS:
        short, long = (next(x for x in lines if x["layout"] == layout and x["T"] == length) for length in GROWTH_LENGTHS)
        times = GROWTH_LENGTHS[1] / GROWTH_LENGTHS[0]
        for what, field, unit in (("time", "median_ms", "ms"), ("memory", "peak_mib", "MiB")):
            yield Row(f"{what} a token at T = 131,072 over T = 8,192, {layout} ({long[field]:,.0f} and {short[field]:,.0f} {unit})",
                      long[field] / short[field] / times, "of linear", "<= 1.2")
