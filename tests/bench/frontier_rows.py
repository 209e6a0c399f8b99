"""Bytes against quality: the line of untrained windows, and where students lie.

A point is a state's size of a sequence and the loss of the second half of its tokens. The line is the teacher under its window
and sinks, untrained, at growing windows; a student that lies above it is worth less than a window of its bytes. Students are
those of HEDGEROW_FRONTIER_RUNS (finished runs, separated by ":"), or of the quickstart's recipe at sequences of 2,048 tokens, as many
tokens a step, with F = 64 and 128; each with caches of 0, 32, 64 and 128 recalled keys as far as its window takes them. States are those of fp32 sums: no backend has others.
"""

from __future__ import annotations

import json
import math
import os
import sys
from pathlib import Path
from typing import Any, Iterator

from bench_common import REPOSITORY, Context, Row, Skip, require_packages
from quality_rows import with_values
from recall_rows import call, sequences_of, text_of

sys.path += [str(REPOSITORY / "deploy" / "huggingface"), str(REPOSITORY / "deploy" / "huggingface" / "tasks")]

WINDOWS = (64, 96, 128, 162, 256, 512)
CACHES = (0, 32, 64, 128)
SPANS = {512: 8, 2048: 4, 4096: 2}  # tokens of a sequence: sequences of a text
QUICK_SPANS = {512: 2}


def runs_of(context: Context) -> list[Path]:
    given = os.environ.get("HEDGEROW_FRONTIER_RUNS")
    if given:
        runs = [Path(one).expanduser() for one in given.split(":")]
        for run in runs:
            if not run.is_dir():
                raise Skip(f"HEDGEROW_FRONTIER_RUNS: {run} is not there")
        return runs
    runs = []
    for features in (64, 128):
        toml = (REPOSITORY / "deploy" / "recipes" / "smollm2_quickstart.toml").read_text()
        for section, values in {"data.transfer": {"seq_len": "2048", "validation_sequences": "2"},
                                "data.evaluate": {"max_sequences": "1", "texts": "[]"},
                                "attention": {"feature_dim": str(features), "recall_cache": str(64)},
                                "plan": {"sequences_per_forward": "1"},
                                "transfer": {"sequences_per_step": "1", "validation_sequences": "1"},
                                "finetune": {"sequences_per_step": "1"}}.items():
            toml = with_values(toml, section, values)
        run = context.work / f"F = {features}, T = 2,048"
        recipe = context.work / f"frontier-{features}.toml"
        recipe.write_text(toml)
        call(context, "run", "--run", run, "--recipe", recipe)
        runs.append(run)
    return runs


def subjects_of(context: Context, run: Path) -> dict[str, Any]:
    import subprocess
    done = subprocess.run([context.program("hedgerow"), "evaluate", "--run", run, "--print-subjects", "--json", "--device", "cpu"],
                          capture_output=True, text=True)
    if done.returncode:
        raise Skip(f"{run}: {done.stderr.strip()[-200:]}")
    return json.loads(done.stdout)


def measured(words: list[str], texts: dict[str, list[list[int]]]) -> dict[str, Any] | None:
    """Perplexities of the second halves and the state's bytes; None where the worker refuses these settings."""
    from hedgerow_worker import Worker, WorkerFailed
    try:
        worker = Worker(words)
    except WorkerFailed as error:
        print(f"    left out: {error}", flush=True)
        return None
    try:
        found = {"state_bytes": worker.description.get("state_bytes"), "window_size": worker.description.get("window_size")}
        for name, sequences in texts.items():
            scores = worker.ask({"score": [{"ids": ids, "first": len(ids) // 2} for ids in sequences]})["scores"]
            losses = [-value for one in scores for value in one["log_probabilities"]]
            found[name] = math.exp(sum(losses) / len(losses))
        return found
    finally:
        worker.close()


def line_at(line: list[tuple[float, float]], size: float) -> float | None:
    """The window's perplexity at a size, between neighbours by the logarithm of both; None beyond the ends."""
    for (a, at_a), (b, at_b) in zip(line, line[1:]):
        if a <= size <= b:
            share = (math.log(size) - math.log(a)) / (math.log(b) - math.log(a))
            return math.exp(math.log(at_a) + share * (math.log(at_b) - math.log(at_a)))
    return None


def plot(points: list[dict[str, Any]], texts: list[str], path: Path) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
    rows = 2 if len(texts) > 3 else 1  # a text a row
    columns = len(texts) // rows
    figure, grid = pyplot.subplots(rows, columns, figsize=(4.2 * columns, 3.6 * rows), squeeze=False)
    axes = grid.ravel()
    for axis, text in zip(axes, texts):
        windows = [point for point in points if point["kind"] == "window"]
        axis.plot([point["state_bytes"] / 1e6 for point in windows], [point[text] for point in windows], marker=".",
                  label="untrained window and sinks")
        for name in dict.fromkeys(point["series"] for point in points if point["kind"] == "student"):
            own = [point for point in points if point.get("series") == name]
            axis.plot([point["state_bytes"] / 1e6 for point in own], [point[text] for point in own], marker="o", linestyle=":",
                      label=name)
        teacher = next(point for point in points if point["kind"] == "teacher")
        axis.axhline(teacher[text], color="grey", linewidth=0.8, label="teacher, all keys")
        axis.set(title=text, xlabel="MB of state a sequence", xscale="log", yscale="log")
        axis.minorticks_off()
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5)))
            side.set_major_formatter(ticker.ScalarFormatter())
    for row in grid:
        row[0].set_ylabel("perplexity, second half")
    axes[0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


def frontier(context: Context) -> Iterator[Row]:
    """The rows; frontier.json and frontier.png lie in the work folder."""
    require_packages("transformers")
    from model_tokenizer import auto_tokenizer
    runs = runs_of(context)
    jobs = [subjects_of(context, run) for run in runs]
    tokenizer = auto_tokenizer().from_pretrained(jobs[0]["model"])
    sources = {"WikiText-2": context.data("wikitext2_valid.txt"),
               "Devil's Dictionary": context.cache / "data" / "devils-dictionary.txt.gz"}
    spans = QUICK_SPANS if context.is_quick else SPANS
    texts = {}
    for name, path in sources.items():
        ids = tokenizer(text_of(path), add_special_tokens=False, verbose=False).input_ids
        texts |= {f"{name}, T = {length:,}": sequences_of(ids, length, count) for length, count in spans.items()}
    points: list[dict[str, Any]] = []

    def add(kind: str, name: str, series: str, words: list[str]) -> None:
        print(f"  {name}", flush=True)
        found = measured(words, texts)
        if found is not None:
            points.append({"kind": kind, "name": name, "series": series} | found)
            (context.work / "frontier.json").write_text(json.dumps(points, indent=1) + "\n")

    first = {subject["name"]: subject["arguments"] for subject in jobs[0]["subjects"]}
    worker = jobs[0]["worker"]
    add("teacher", "teacher", "teacher", [worker, "answer", *first["teacher"]])
    untrained = first["control"][:first["control"].index("--window")]
    for window in WINDOWS:
        add("window", f"window of {window}", "window", [worker, "answer", *untrained, "--window", str(window)])
    for run, job in zip(runs, jobs):
        own = {subject["name"]: subject["arguments"] for subject in job["subjects"]}
        arguments = own.get("lora", own.get("transfer"))
        for cache in CACHES:
            add("student", f"{run.name}, {cache} recalled keys", run.name,
                [worker, "answer", *arguments, "--recall-cache", str(cache)])
    line = [point for point in points if point["kind"] == "window"]
    plot(points, list(texts), context.work / "frontier.png")
    print(f"kept in {context.work / 'frontier.json'} and frontier.png", flush=True)
    for point in points:
        if point["kind"] != "student":
            continue
        for text in texts:
            window = line_at([(one["state_bytes"], one[text]) for one in line], point["state_bytes"])
            if window is None:
                continue
            yield Row(f"{text}: {point['name']} ({point['state_bytes'] / 1e6:.1f} MB), perplexity over the untrained window's of "
                      "its bytes", point[text] / window, "x", "<= 1")
