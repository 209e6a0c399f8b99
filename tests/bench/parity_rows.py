"""What must be equal: the teacher and an export against transformers, generation and resume against themselves."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Iterator

from bench_common import REPOSITORY, Context, Row, Skip, require_packages

MARGIN = 4e-3  # logits closer than twice the tolerance may change places


def teacher(context: Context) -> Iterator[Row]:
    require_packages("torch", "transformers", "safetensors", "h5py")
    import h5py
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = context.model()
    tokens, file = context.tokens(model), context.work / "logits.safetensors"
    done = subprocess.run([context.program("hedgerow-worker"), "evaluate", "--model", model, "--tokens", tokens,
                           "--max-sequences", "4", "--compute-dtype", "fp32", "--logits", file, "--json"],
                          capture_output=True, text=True, check=True)
    ours, result = load_file(file)["logits"], json.loads(done.stdout)
    with h5py.File(tokens) as source:
        first = int(source.attrs["num_train"])
        ids = torch.from_numpy(source["input_ids"][first:first + len(ours)].astype("int64"))
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = torch.cat([reference(row[None], use_cache=False).logits for row in ids])
    yield Row(f"teacher: largest difference of logits, {ids.numel()} tokens", float((ours - expected).abs().max()), "", "<= 0.002")
    top = expected.topk(2).values
    clear = (top[..., 0] - top[..., 1]) > MARGIN
    wrong = int(((ours.argmax(-1) != expected.argmax(-1)) & clear).sum())
    yield Row("teacher: other argmax where the top two are clear", float(wrong), "tokens", "== 0")
    loss = torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    off = abs(result["perplexity"] / float(loss.exp()) - 1)
    yield Row("teacher: perplexity off transformers'", 100 * off, "%", "<= 0.1")


def newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: int(path.name.lstrip("t")))


def export(context: Context) -> Iterator[Row]:
    """The whole model's students of both windows, exported, against hedgerow-worker: 512 tokens in fp32."""
    require_packages("torch", "transformers", "safetensors", "h5py")
    import h5py
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    model = context.model()
    for window, recipe in (("terraced", "smollm2_quickstart"), ("sliding", "smollm2_reference")):
        run = context.work / f"run-{recipe}-seed{context.seeds[0]}"
        if not (run / "student").is_dir():
            raise Skip(f"no finished run of {recipe}; the recipe rows make one")
        exported, logits = context.work / f"export-{window}", context.work / "export-logits.safetensors"
        shutil.rmtree(exported, ignore_errors=True)
        subprocess.run([context.program("hedgerow"), "export", "--run", run, "--subject", "transfer", "--out", exported],
                       check=True, stdout=subprocess.DEVNULL)
        tokens = run / "tokens" / "evaluate.h5"
        subprocess.run([context.program("hedgerow-worker"), "evaluate", "--model", model, "--student", newest(run / "student"),
                        "--tokens", tokens, "--max-sequences", "1", "--compute-dtype", "fp32", "--logits", logits],
                       check=True, stdout=subprocess.DEVNULL)
        with h5py.File(tokens) as source:
            first = int(source.attrs["num_train"])
            ids = torch.from_numpy(source["input_ids"][first:first + 1].astype("int64"))
        theirs = AutoModelForCausalLM.from_pretrained(exported, trust_remote_code=True, dtype=torch.float32).eval()
        with torch.inference_mode():
            difference = (theirs(ids, use_cache=False).logits - load_file(logits)["logits"]).abs().max()
        yield Row(f"export, {window}: largest difference of logits, {ids.numel()} tokens", float(difference), "", "<= 0.001")


def failing(command: list[str | Path], pattern: str, context: Context) -> int:
    """How many of a test program's cases fail; `pattern` finds how many it ran."""
    environment = {**os.environ, "HEDGEROW_BIN": str(context.binaries),
                   "HEDGEROW_TEST_MODEL": str(context.model(layers=4))}
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=environment, cwd=REPOSITORY)
    output = done.stdout + done.stderr
    ran = re.search(pattern, output)
    if ran is None or int(ran.group(1)) == 0 or "skipped=" in output:
        raise Skip(f"{Path(command[1]).name} ran nothing: {output.strip()[-200:]}")
    return sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", output)) or int(done.returncode != 0)


def generation(context: Context) -> Iterator[Row]:
    failed = failing([sys.executable, REPOSITORY / "tests" / "e2e" / "export_parity_test.py"], r"Ran (\d+) tests?", context)
    yield Row("generation and exports of the 4-layer cut that differ from the full forward", float(failed), "cases", "== 0")


def resume(context: Context) -> Iterator[Row]:
    """A storm of kill -9 over every named place of tests/faults: is anything lost, done twice or of other bytes?"""
    failed = failing([sys.executable, REPOSITORY / "tests" / "faults" / "kill_storm_test.py"], r"kill storm of seed (\d+)", context)
    yield Row("kill storm on the 4-layer cut: storms that lose something or give other bytes", float(failed), "storms", "== 0")
