"""The teacher against transformers in fp32, over 2,048 real tokens."""

from __future__ import annotations

import json
import subprocess
from typing import Iterator

from bench_common import Context, Row, require_packages

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
