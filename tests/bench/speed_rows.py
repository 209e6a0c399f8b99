"""Speed and memory of the three stages against plain PyTorch, alternating repeats in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

from bench_common import OPPONENTS, Contestant, Context, Row, Skip, against, duel, require_packages


GENERATE = Path(__file__).resolve().parent / "generate"


def _pair(context: Context, stage: str, opponent: str, sequences: int, seq_len: int, rows: int, *extra: str):
    require_packages("torch", "transformers", "h5py", *(("peft",) if opponent == "lora_step" else ()))
    model = context.model()
    tokens, threads = context.tokens(model), str(os.cpu_count())
    shape = ("--sequences", str(sequences), "--seq-len", str(seq_len), "--threads", threads)
    ours = Contestant(context.program("steps_bench"), stage, "--model", model, "--tokens", tokens, *shape, "--rows", str(rows),
                      "--window", "sliding")
    theirs = Contestant(sys.executable, OPPONENTS / f"{opponent}.py", "--model", model, "--tokens", tokens, *shape, *extra)
    return ours, theirs


# The goals are against bf16. Where a processor multiplies fp32 faster (no AMX), a reader would name that opponent: it gets
# rows of its own, and we must not be slower than it anywhere.
DTYPES = (("bfloat16", "bf16"), ("float32", "fp32"))


def _decomposition(step: str, ours: Contestant) -> Row:
    """What no named phase covers of one more repeat; the phases are in the row's name."""
    phases = ours.ask("phases")["phases"]
    total, named = sum(phases.values()), sorted(phases.items(), key=lambda phase: -phase[1])
    shown = ", ".join(f"{name} {100 * seconds / total:.1f} %" for name, seconds in named if name != "rest")
    return Row(f"{step}, of {total:.2f} s: {shown}; the rest", 100 * phases.get("rest", 0.0) / total, "%", "<= 10")


def _dtypes(context: Context) -> tuple[tuple[str, str], ...]:
    return DTYPES[:1] if context.is_quick else DTYPES


def capture(context: Context) -> Iterator[Row]:
    for dtype, name in _dtypes(context):
        ours, theirs = _pair(context, "capture", "capture_forward", 8, 512, 4, "--micro-batch", "4", "--dtype", dtype)
        with ours, theirs:
            mine, other = duel(ours, theirs, context.repeats)
        tokens = ours.facts["tokens"]
        yield against(f"capture tokens/s, T = 512, against {name}", tokens / mine, "tokens/s",
                      ">= 1.2" if name == "bf16" else ">= 1",
                      f"transformers {name} body forward, SDPA, no lm_head, no cache", tokens / other)


def transfer(context: Context) -> Iterator[Row]:
    shapes = ((512, 4, "<= 0.15", DTYPES[0]), (512, 4, "<= 1", DTYPES[1]), (2048, 1, "<= 0.06", DTYPES[0]))
    for seq_len, micro_batch, goal, (dtype, name) in shapes[:1] if context.is_quick else shapes:
        opponent = f"plain PyTorch, T x T fp32 maps, {name} weights, SDPA teacher, backward per layer"
        ours, theirs = _pair(context, "transfer", "transfer_step", 4, seq_len, 4, "--micro-batch", str(micro_batch),
                             "--dtype", dtype)
        with ours, theirs:
            # The opponent needs a minute a step at T = 2,048.
            mine, other = duel(ours, theirs, context.repeats if seq_len == 512 else max(1, context.repeats // 2))
            if name == "bf16":  # ours is the same against either
                yield _decomposition(f"transfer step, 4 x {seq_len} tokens", ours)
        yield against(f"transfer step, 4 x {seq_len} tokens, 30 layers, against {name}", mine, "s", goal, opponent, other)


def lora(context: Context) -> Iterator[Row]:
    for (dtype, name), goal in zip(_dtypes(context), ("<= 0.3", "<= 1")):
        ours, theirs = _pair(context, "finetune", "lora_step", 4, 512, 1, "--micro-batch", "1", "--dtype", dtype)
        with ours, theirs:
            mine, other = duel(ours, theirs, context.repeats)
            if name == "bf16":
                yield _decomposition("LoRA step, 4 x 512 tokens", ours)
        yield against(f"LoRA step, 4 x 512 tokens, against {name}", mine, "s", goal,
                      f"PyTorch and PEFT, T x T fp32 maps, {name} base", other)


def teacher(context: Context) -> Iterator[Row]:
    """What it costs to keep the teacher's top logits, and to learn from them."""
    model = context.model(layers=5)
    command = (context.program("steps_bench"), "logits", "--model", model, "--tokens", context.tokens(model),
               "--sequences", "4", "--rows", "1", "--seq-len", "512")
    with Contestant(*command) as ours, Contestant(*command, "--top-k", "0") as theirs:
        mine, other = duel(ours, theirs, 3 * context.repeats)
        size = ours.ask("go")["bytes"] / (4 * 512)
    yield Row("top 256 logits on disk, a token", size, "B", "<= 1600")
    yield against("a block of 5 layers and the head with the top 256 logits", mine, "s", "<= 1.03",
                  "the same without keeping them", other)
    model = context.model()
    command = (context.program("steps_bench"), "finetune", "--model", model, "--tokens", context.tokens(model),
               "--sequences", "4", "--rows", "1", "--seq-len", "512")
    with Contestant(*command, "--objective", "kl") as ours, Contestant(*command) as theirs:
        mine, other = duel(ours, theirs, context.repeats)
    yield against("LoRA step, 4 x 512 tokens, by KL from the teacher", mine, "s", "<= 1.03", "by cross-entropy", other)


SPIN_COUNT = "2000"  # kOpenMpSpinCount (storage/base/openmp_spin.hpp)
DEFAULT_SPIN_COUNT = "300000"  # libgomp's


def threads(context: Context) -> Iterator[Row]:
    """A transfer step with the spin count of our workers against libgomp's, on a quiet machine and on a busy one."""
    model = context.model(layers=4)
    command = (context.program("steps_bench"), "transfer", "--model", model, "--tokens", context.tokens(model), "--sequences", "4",
               "--rows", "4", "--seq-len", "512")
    for kind, processes, goal in (("quiet", 0, "<= 1.05"), ("busy", os.cpu_count(), "<= 0.8")):
        others = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(processes)]
        try:
            with Contestant(*command, GOMP_SPINCOUNT=SPIN_COUNT) as ours, \
                    Contestant(*command, GOMP_SPINCOUNT=DEFAULT_SPIN_COUNT) as theirs:
                mine, other = duel(ours, theirs, 3 * context.repeats, warm_ups=1)
        finally:
            for process in others:
                process.kill()
                process.wait()
        yield against(f"transfer step, 4 layers, {os.cpu_count()} threads, {kind} machine", mine, "s", goal,
                      "the same with libgomp's spin count", other)


def memory(context: Context) -> Iterator[Row]:
    """What a step takes beside the weights, from 4 K to 8 K tokens over 4 x from 1 K to 2 K: 1 if linear, 4 if quadratic."""
    model = context.model()
    tokens, peak = context.tokens(model), {}
    for seq_len in (1024, 2048, 4096, 8192):
        with Contestant(context.program("steps_bench"), "transfer", "--model", model, "--tokens", tokens, "--sequences", "1",
                        "--rows", "1", "--seq-len", str(seq_len), "--layers", "2", "--threads", str(os.cpu_count())) as ours:
            peak[seq_len] = max(ours.ask("memory")["step_mib"] for _ in range(3))
    growth = (peak[8192] - peak[4096]) / max(1, 4 * (peak[2048] - peak[1024]))
    shown = ", ".join(f"{n // 1024} K: {mib:.0f} MiB" for n, mib in peak.items())
    yield Row(f"transfer memory's growth, 1 K to 8 K tokens ({shown})", growth, "of linear", "<= 1.3")


def recall(context: Context) -> Iterator[Row]:
    """Generation with a recall cache of half the features, over the same without one."""
    model = context.model()

    def generating(keys: int, sequences: int, prompt: int, new: int) -> Contestant:
        return Contestant(context.program("steps_bench"), "decode", "--model", model, "--tokens", context.tokens(model),
                          "--sequences", str(sequences), "--seq-len", str(new), "--prompt", str(prompt), "--threads",
                          str(os.cpu_count()), "--recall-cache", str(keys))

    shapes = (("decode, batch 1, 256 tokens behind a prompt of 256", 1, 256, 256, "<= 1.15"),
              ("decode, batch 64, 128 tokens behind prompts of 192", 64, 192, 128, "<= 1.15"),
              ("prefill of 4,096 tokens", 1, 4096, 1, "<= 1.2"))
    for name, sequences, prompt, new, goal in shapes[:1] if context.is_quick else shapes:
        with generating(32, sequences, prompt, new) as ours, generating(0, sequences, prompt, new) as theirs:
            mine, other = duel(ours, theirs, context.repeats)
        yield against(f"recall cache of 32, {name}: seconds", mine, "s", goal, "the same student without a cache", other)
    if context.is_quick:
        return
    took = []
    for prompt in (1024, 7936):
        with generating(32, 1, prompt, 1) as first, generating(32, 1, prompt, 129) as all_of_them:
            one, many = duel(first, all_of_them, context.repeats)
        took.append((many - one) / 128)
    yield against("recall cache of 32: seconds of a token behind 7,936", took[1], "s", "<= 1.1", "behind 1,024", took[0])


def _generation_run(context: Context) -> Path:
    """HEDGEROW_FRONTIER_RUNS' first, or the quickstart's: speed does not depend on what a student learned."""
    given = os.environ.get("HEDGEROW_FRONTIER_RUNS", "").split(":")[0]
    run = Path(given).expanduser() if given else context.work / "run-quickstart"
    if not run.is_dir():
        raise Skip(f"{run} is not there; the row `frontier` makes the quickstart's run")
    return run


def generate(context: Context) -> Iterator[Row]:
    """Decoding against transformers' generate, and how the time of a token grows with the context."""
    require_packages("torch", "transformers")
    run = _generation_run(context)

    def measured(*words: str) -> list[dict[str, Any]]:
        done = subprocess.run([sys.executable, GENERATE, "--run", run, "--worker", context.program("hedgerow-worker"), "--device",
                               "cpu", "--json", *words], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{GENERATE.name} {' '.join(words)} exits {done.returncode}: {done.stderr.strip()[-300:]}")
        return [row for row in map(json.loads, done.stdout.splitlines()) if row.get("event") == "measured"]

    # A second of tokens of one row is soon disturbed: medians of three, side by side.
    rows = [row for batch in ("1", "1", "1", "8") for row in measured("--batch", batch, "--prompt", "4096", "--new", "33")]
    rates: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        rates.setdefault((row["name"], row["batch"]), []).append(row["tokens_per_second"])
    rate = {key: statistics.median(values) for key, values in rates.items()}
    for batch in (1, 8):
        if ("transformers", batch) in rate:
            yield against(f"generate at context 4,096, batch {batch}: tokens/s", rate["student", batch], "", ">= 3",
                          "transformers' generate, its faster dtype", rate["transformers", batch])
        yield against(f"generate at context 4,096, batch {batch}: tokens/s", rate["student", batch], "", ">= 1",
                      "the teacher by our softmax", rate["teacher", batch])
    if context.is_quick:
        return
    student = [row for row in measured("--subject", "transfer", "--batch", "1", "--prompt", "1024,131072", "--new", "129", "--alone")
               if row["name"] == "student"]
    seconds = [1 / row["tokens_per_second"] for row in student]
    yield against("generate, batch 1: seconds of a token behind 128K tokens", seconds[1], "s", "<= 1.05", "behind 1K", seconds[0])
    caches = [row["cache_bytes"] for row in student]
    yield against("generate, batch 1: bytes of caches behind 128K tokens", caches[1], "", "<= 1", "behind 1K", caches[0])


def _status(context: Context) -> tuple[float, dict[str, Any]]:
    """Seconds that `hedgerow status` of the first recipe run took, and what it says."""
    run = next(iter(sorted(context.work.glob("run-*/run.toml"))), None)
    if run is None:
        raise Skip("no finished run; the recipe rows make one")
    begin = time.perf_counter()
    done = subprocess.run([context.program("hedgerow"), "status", "--run", run.parent, "--json"], capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise Skip(f"hedgerow status --run {run.parent} exits {done.returncode}: {done.stderr.strip()}")
    return seconds, json.loads(done.stdout)


def status_latency(context: Context) -> Iterator[Row]:
    seconds = [_status(context)[0] for _ in range(21)]
    yield Row("hedgerow status", 1000 * statistics.median(seconds), "ms", "<= 50")


def data_wait(context: Context) -> Iterator[Row]:
    """Over all capture and transfer tasks of the first recipe run."""
    _, status = _status(context)
    results = [t["result"] for t in status["tasks"] if t["stage"] in ("capture", "transfer") and t.get("result")]
    total = sum(r["seconds"] for r in results)
    yield Row("waiting on data, of a worker's time", 100 * sum(r["seconds_waited_on_data"] for r in results) / total, "%", "<= 2")
