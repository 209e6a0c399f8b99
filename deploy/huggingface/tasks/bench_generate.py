"""`hedgerow bench generate`: tokens a second and memory of the student by our kernels, of the teacher by our softmax and by
transformers' generate, at each batch, length of prompt and number of new tokens; in turns, in one call.

Reads {"worker", "model", "subjects", "batches", "prompts", "new", "threads", "plot"} on stdin; writes a line a measurement. The
rate is that of decoding alone: from the first new token to the last. Memory is the process's peak, its caches beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import UsageError, run_main  # noqa: E402

OPPONENT = "transformers"


def say(value: dict) -> None:
    print(json.dumps(value), flush=True)


def prompt_ids(vocab_size: int, batch: int, length: int) -> list[list[int]]:
    """Ids that no model finds special: speed does not depend on them."""
    return [[(row * 7919 + place * 104729) % (vocab_size - 1000) + 500 for place in range(length)] for row in range(batch)]


def peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def figures(seconds: list[float], batch: int) -> dict[str, float]:
    """`slowing`: the time of the last quarter's tokens over that of the first's."""
    steps = len(seconds) - 1
    quarter = max(1, steps // 4)
    first, last = seconds[quarter] - seconds[0], seconds[-1] - seconds[-1 - quarter]
    return {"first_token_seconds": seconds[0], "tokens_per_second": batch * steps / (seconds[-1] - seconds[0]),
            "slowing": last / first}


def by_worker(job: dict, subject: dict, batch: int, prompt: int, new: int) -> dict:
    """In a process of its own, whose peak is this measurement's."""
    from hedgerow_worker import Worker
    words = [job["worker"], "answer", *subject["arguments"]]
    if job["threads"]:
        words += ["--threads", str(job["threads"])]
    worker = Worker(words)
    try:
        answer = worker.ask({"generate": prompt_ids(job["vocab_size"], batch, prompt), "max_new_tokens": new,
                             "end_tokens": [-1], "times": True})
        return figures(answer["seconds"], batch) | {"peak_bytes": peak_bytes(worker.process.pid),
                                                    "cache_bytes": answer["cache_bytes"],
                                                    "dtype": worker.description["compute_dtype"]}
    finally:
        worker.close()


def by_transformers(job: dict, batch: int, prompt: int, new: int) -> dict | None:
    """The faster one of bf16 and fp32; None where transformers or torch cannot be imported."""
    best = None
    for dtype in ("bfloat16", "float32"):
        question = {"model": job["model"], "batch": batch, "prompt": prompt, "new": new, "dtype": dtype,
                    "threads": job["threads"], "vocab_size": job["vocab_size"]}
        ended = subprocess.run([sys.executable, __file__, OPPONENT], input=json.dumps(question), capture_output=True, text=True,
                               check=False)
        if ended.returncode != 0:
            say({"event": "warning", "text": f"{OPPONENT} in {dtype}: {(ended.stderr.strip().splitlines() or ['ended'])[-1][:160]}"})
            continue
        found = json.loads(ended.stdout.splitlines()[-1])
        if best is None or found["tokens_per_second"] > best["tokens_per_second"]:
            best = found
    return best


def opponent() -> int:
    question = json.load(sys.stdin)
    import torch
    from transformers import AutoModelForCausalLM, LogitsProcessor, LogitsProcessorList
    if question["threads"]:
        torch.set_num_threads(question["threads"])
    seconds: list[float] = []

    class Clock(LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            seconds.append(time.monotonic() - begin)
            return scores

    model = AutoModelForCausalLM.from_pretrained(question["model"], dtype=getattr(torch, question["dtype"]))
    ids = torch.tensor(prompt_ids(question["vocab_size"], question["batch"], question["prompt"]))
    with torch.no_grad():
        begin = time.monotonic()
        model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=question["new"], max_new_tokens=question["new"],
                       do_sample=False, pad_token_id=0, logits_processor=LogitsProcessorList([Clock()]))
    say(figures(seconds, question["batch"]) | {"peak_bytes": peak_bytes(os.getpid()), "dtype": question["dtype"]})
    return 0


def plot(rows: list[dict], path: str) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError:
        say({"event": "warning", "text": "no plot: matplotlib is missing; deploy/setup --tests installs it"})
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot
    lengths = sorted({(row["prompt"], row["new"]) for row in rows})
    figure, axes = pyplot.subplots(1, len(lengths), figsize=(4.5 * len(lengths), 3.6), squeeze=False, sharey=True)
    for axis, (prompt, new) in zip(axes[0], lengths):
        for name in dict.fromkeys(row["name"] for row in rows):
            own = [row for row in rows if (row["name"], row["prompt"], row["new"]) == (name, prompt, new)]
            axis.plot([row["batch"] for row in own], [row["tokens_per_second"] for row in own], marker="o", label=name)
        axis.set(title=f"context {prompt} to {prompt + new}", xlabel="batch", xscale="log", yscale="log")
    axes[0][0].set_ylabel("tokens a second")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> int:
    job = json.load(sys.stdin)
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    config = json.loads((Path(job["model"]) / "config.json").read_text())
    job["vocab_size"] = config["vocab_size"]
    rows: list[dict] = []
    cases = [(prompt, new, batch) for prompt in job["prompts"] for new in job["new"] for batch in job["batches"]]
    names = [*job["subjects"], *([{"name": OPPONENT}] if job["opponent"] else [])]
    for index, (prompt, new, batch) in enumerate(cases):
        for place, subject in enumerate(names):
            share = (index + place / len(names)) / len(cases)
            say({"event": "progress", "phase": "generating", "progress": share,
                 "note": f"{subject['name']}, batch {batch}, context {prompt}"})
            found = (by_transformers(job, batch, prompt, new) if subject["name"] == OPPONENT
                     else by_worker(job, subject, batch, prompt, new))
            if found is not None:
                rows.append({"event": "measured", "name": subject["name"], "batch": batch, "prompt": prompt, "new": new} | found)
                say(rows[-1])
    if not rows:
        raise UsageError("nothing could be measured, for the reasons above")
    if job["plot"]:
        plot(rows, job["plot"])
    return 0


if __name__ == "__main__":
    run_main(opponent if OPPONENT in sys.argv[1:] else main)
