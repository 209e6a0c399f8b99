#!/usr/bin/env python3
"""How much of the gap to the teacher the last stage closes, over its tokens: one run of the quickstart's recipe.

    tests/bench/finetune_curve.py --binaries build/cpu/bin --work DIR --seed 0 --steps 488 >> curve.jsonl
    tests/bench/plot_finetune finetune.svg < curve.jsonl

The run is the real system's: transfer, logits of the whole text, then `--steps` steps of 4 x 512 tokens. Its checkpoints are
kept as they come, and each is evaluated as an adapter on the held-out end of roleplay_alpaca and on WikiText-2. A line of
JSON each: {"seed", "step", "tokens", "text", "perplexity", "control", "teacher", "gap_closed", "kl", "control_kl"}.
Step 0 is the student as the transfer leaves it. A work folder that is there is gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

from bench_common import Context, Row, against
from quality_rows import OTHER, recipe_text, with_values

TOKENS_PER_STEP = 4 * 512
# 8 of 1 M tokens: 0.125, 0.25, 0.375, ... M.
CHECKPOINT_EVERY = 61
FINETUNE = {"objective": '"kl"', "trainable": '["lora", "maps", "window_factors"]', "learning_rate": "1e-3", "schedule": '"cosine"',
            "warmup_steps": "10", "validate_every": str(CHECKPOINT_EVERY), "checkpoint_every": str(CHECKPOINT_EVERY)}


def curve_recipe(context: Context, seed: int, steps: int) -> str:
    """The quickstart's, whose last stage has all of the text and not only what the transfer has seen."""
    toml = recipe_text(context, "smollm2_quickstart", seed)
    source = f'[{{ path = "{context.data("roleplay_alpaca.json")}", format = "records" }}]'
    section = (f'[data.finetune]\nsources = {source}\nsplit = "sequences"\neos_token_id = 2\nseq_len = 512\n'
               "validation_sequences = 16\n\n")
    toml = toml.replace("[data.evaluate]", section + "[data.evaluate]")
    return with_values(toml, "finetune", {**FINETUNE, "max_steps": str(steps)})


def keep_checkpoints(run: Path, kept: Path) -> None:
    for file in run.glob("attempts/t*/checkpoint.s*.safetensors"):
        step = file.name.split(".")[1][1:]
        if not (kept / step).exists() and not file.name.startswith("checkpoint.s0."):
            try:
                os.link(file, kept / step)
            except FileNotFoundError:
                pass  # a newer one took its place
    for file in kept.iterdir():  # those of the transfer lie beside them, and are not of a finetune
        if file.is_file() and not is_of_finetune(file):
            file.unlink()


def is_of_finetune(file: Path) -> bool:
    from safetensors import safe_open
    with safe_open(file, "numpy") as tensors:
        return any("lora_A" in name for name in tensors.keys())


def write_adapter(checkpoint: Path, config: str, directory: Path) -> None:
    """A checkpoint's parameters as the adapter that a run of so many steps would have left."""
    from safetensors.numpy import load_file, save_file
    moments = (".exp_avg", ".exp_avg_sq", ".best")
    tensors = {name: tensor for name, tensor in load_file(checkpoint).items() if not name.endswith(moments)}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter_config.json").write_text(config)
    parts = {name: tensor for name, tensor in tensors.items() if "lora_" not in name}
    save_file({name: tensor for name, tensor in tensors.items() if "lora_" in name},
              directory / "adapter_model.safetensors", {"format": "pt"})
    if parts:
        save_file(parts, directory / "trained_parameters.safetensors", {"format": "pt"})


def evaluated(context: Context, run: Path, adapter: Path | None, text: str) -> dict[str, Any]:
    tokens = run / "tokens" / ("evaluate.h5" if text == "roleplay" else f"evaluate-{OTHER}.h5")
    student = sorted(run.glob("student/t*"))[-1]
    command = [context.program("hedgerow"), "evaluate", "--model", context.model(), "--student", student, "--tokens", tokens,
               "--max-sequences", "16", "--json"]
    if adapter is not None:
        command += ["--lora", adapter]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow evaluate exits {done.returncode}: {done.stderr.strip()[-500:]}")
    result = json.loads(done.stdout.strip().splitlines()[-1])
    columns = result["columns"]
    return {"text": text, "perplexity": result["perplexity"], "control": columns["control"]["perplexity"],
            "teacher": columns["teacher"]["perplexity"], "gap_closed": result["gap_closed"], "kl": columns["student"]["kl"],
            "control_kl": columns["control"]["kl"]}


def measure(context: Context, seed: int, steps: int) -> Iterator[dict[str, Any]]:
    run, kept = context.work / f"curve-seed{seed}", context.work / f"curve-seed{seed}-checkpoints"
    kept.mkdir(parents=True, exist_ok=True)
    recipe = context.work / f"curve-seed{seed}.toml"
    recipe.write_text(curve_recipe(context, seed, steps))
    with open(context.work / f"curve-seed{seed}.log", "a") as log:
        job = subprocess.Popen([context.program("hedgerow"), "run", "--run", run, "--recipe", recipe], stdout=log, stderr=log)
        while job.poll() is None:
            time.sleep(2)
            keep_checkpoints(run, kept)
    if job.returncode:
        raise RuntimeError(f"hedgerow run --run {run} exits {job.returncode}; see {log.name}")
    keep_checkpoints(run, kept)
    published = sorted(run.glob("adapter/t*"))[-1]
    config = (published / "adapter_config.json").read_text()
    # The last step has no checkpoint: its line is that of the adapter that the run publishes, the best by validation.
    for step in [0, *sorted(int(file.name) for file in kept.iterdir() if file.name.isdigit()), steps]:
        adapter = published if step == steps else kept / f"adapter-{step}" if step else None
        if adapter is not None and adapter != published:
            write_adapter(kept / str(step), config, adapter)
        for text in ("roleplay", OTHER):
            yield {"seed": seed, "step": step, "tokens": step * TOKENS_PER_STEP, **evaluated(context, run, adapter, text)}


def rows(context: Context) -> Iterator[Row]:
    """The last stage of three seeds after 1 M tokens, beside the control's KL."""
    found: dict[str, list[dict[str, Any]]] = {"roleplay": [], OTHER: []}
    for seed in context.seeds:
        for line in measure(context, seed, 8 * CHECKPOINT_EVERY):
            if line["step"] == 8 * CHECKPOINT_EVERY:
                found[line["text"]].append(line)
    for text, where, gap, kl in (("roleplay", "in domain", ">= 0.9", "<= 0.333"), (OTHER, "on WikiText-2", ">= 0.4", "<= 0.5")):
        lines = found[text]
        yield Row(f"last stage, 1 M tokens: gap closed {where}, median of {len(lines)} seeds",
                  statistics.median(line["gap_closed"] for line in lines), "", gap)
        yield against(f"last stage, 1 M tokens: KL to the teacher {where}", statistics.median(line["kl"] for line in lines), "", kl,
                      "the control's", statistics.median(line["control_kl"] for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=8 * CHECKPOINT_EVERY)
    options = parser.parse_args()
    cache = Path(os.environ.get("HEDGEROW_CACHE", Path.home() / ".cache" / "hedgerow"))
    options.work.mkdir(parents=True, exist_ok=True)
    context = Context(options.binaries, options.work, cache, repeats=1, seeds=(options.seed,))
    for line in measure(context, options.seed, options.steps):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    sys.exit(main())
