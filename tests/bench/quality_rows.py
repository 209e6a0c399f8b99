"""How well the recipes linearize SmolLM2-135M: whole runs of the real system, medians over seeds."""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import subprocess
from typing import Any, Iterator

from bench_common import REPOSITORY, Context, Row, Skip


OTHER = "wikitext2"  # a text that is never trained on, evaluated beside the held-out end of roleplay_alpaca


def with_values(toml: str, section: str, values: dict[str, str]) -> str:
    """A recipe's text with keys of one section set (added if absent)."""
    head, _, rest = toml.partition(f"[{section}]\n")
    body, following = re.match(r"((?:(?!^\[).*\n?)*)(.*)", rest, re.DOTALL | re.MULTILINE).groups()
    for key, value in values.items():
        line = f"{key} = {value}\n"
        body, count = re.subn(rf"^{key} *=.*\n(?:  .*\n)*(?:\]\n)?", lambda _: line, body, flags=re.MULTILINE)  # an array of several lines too
        body = body if count else line + body
    return f"{head}[{section}]\n{body}{following}"


def recipe_text(context: Context, name: str, seed: int) -> str:
    """A recipe of deploy/recipes on roleplay_alpaca, with its model, data and seed set."""
    toml = (REPOSITORY / "deploy" / "recipes" / f"{name}.toml").read_text()
    toml = re.sub(r"^seed *=.*$", f"seed = {seed}", toml, flags=re.MULTILINE)
    toml = with_values(toml, "model", {"path": f'"{context.model()}"'})
    source = f'[{{ path = "{context.data("roleplay_alpaca.json")}", format = "records" }}]'
    toml = with_values(toml, "data.transfer", {"sources": source, "split": '"sequences"', "eos_token_id": "2",
                                               "seq_len": "512", "validation_sequences": "8"})
    other = f'[{{ name = "{OTHER}", path = "{context.data("wikitext2_valid.txt")}", format = "text" }}]'
    toml = with_values(toml, "data.evaluate", {"texts": other, "max_sequences": "16"})
    return with_values(toml, "evaluate", {"max_sequences": "16"})


def run_recipe(context: Context, label: str, toml: str, student_of: str = "") -> dict[str, Any]:
    """Runs (or resumes) a recipe, with the student of the run of another label where one is given, and returns `hedgerow status
    --json`."""
    program, directory = context.program("hedgerow"), context.work / f"run-{label}"
    recipe = context.work / f"{label}.toml"
    recipe.write_text(toml)
    more = ("--student-of", context.work / f"run-{student_of}") if student_of else ()
    done = subprocess.run([program, "run", "--run", directory, "--recipe", recipe, *more], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow run --run {directory} exits {done.returncode}: {done.stderr.strip()[-500:]}")
    status = subprocess.run([program, "status", "--run", directory, "--json"], capture_output=True, text=True, check=True)
    return json.loads(status.stdout)


def figures(status: dict[str, Any]) -> dict[str, float]:
    """Validation MSE of the transfer (mean and worst layer), the perplexities, and after transfer the gaps closed."""
    tasks = {task["id"]: task.get("result") or {} for task in status["tasks"]}
    mse = [layer["mse"] for task in status["tasks"] if task["stage"] == "transfer" for layer in task["result"]["layers"]]
    found = {"mse_mean": statistics.fmean(mse), "mse_worst": max(mse)}
    for subject in ("teacher", "transfer", "lora"):
        if "perplexity" in tasks.get(f"evaluate/{subject}", {}):
            found[subject] = tasks[f"evaluate/{subject}"]["perplexity"]
    result = tasks.get("evaluate/transfer", {})
    for key, text in (("gap", result), ("other_gap", (result.get("texts") or {}).get(OTHER, {}))):
        if text.get("gap_closed") is not None:
            found[key] = text["gap_closed"]
    return found


def median_rows(context: Context, recipe: str, goals: dict[str, tuple[str, str]], finetune: bool,
                steps: int = 60) -> Iterator[Row]:
    context.data("roleplay_alpaca.json")
    found = []
    label = recipe if steps == 60 else f"{recipe}, {steps} steps"
    for seed in context.seeds:
        toml = recipe_text(context, recipe, seed)
        if not finetune:
            toml = with_values(toml, "finetune", {"enabled": "false"})
        toml = with_values(toml, "transfer", {"max_steps": str(steps)})
        found.append(figures(run_recipe(context, f"{label}-seed{seed}".replace(", ", "-").replace(" ", "-"), toml)))
    for key, (name, goal) in goals.items():
        value = statistics.median(f[key] for f in found)
        yield Row(f"{label}: {name}, median of {len(found)} seeds", value, "", goal)


def reference_recipe(context: Context) -> Iterator[Row]:
    yield from median_rows(context, "smollm2_reference", {
        "teacher": ("teacher's perplexity", "<= 12.6"), "mse_mean": ("validation MSE, mean over layers", "<= 0.018"),
        "mse_worst": ("validation MSE, worst layer", "<= 0.065"), "transfer": ("perplexity after transfer", "<= 18.0"),
        "lora": ("perplexity after 40 LoRA steps", "<= 15.2")}, finetune=True)


def own_recipe(context: Context) -> Iterator[Row]:
    yield from median_rows(context, "smollm2_quickstart", {
        "mse_mean": ("validation MSE, mean over layers", "<= 0.0026"), "transfer": ("perplexity after transfer", "<= 12.5"),
        "gap": ("gap closed in domain", ">= 0.55"), "other_gap": ("gap closed on WikiText-2", ">= 0.1")}, finetune=False)
    yield from median_rows(context, "smollm2_quickstart", {
        "gap": ("gap closed in domain", ">= 0.75"), "other_gap": ("gap closed on WikiText-2", ">= 0.3")},
        finetune=False, steps=500)


NEVER_SEEN = ("persuasion", "devils-dictionary", OTHER)  # of the mixture's held-out texts


def of_text(result: dict[str, Any], column: str) -> dict[str, float]:
    """What a column makes of one text beyond two windows: its gap closed, its KL over the control's, its perplexity over that of the
    window of equal bytes."""
    beyond = {name: values["beyond"] for name, values in result["columns"].items()}
    gap = beyond["control"]["loss"] - beyond["teacher"]["loss"]
    return {"gap": (beyond["control"]["loss"] - beyond[column]["loss"]) / gap, "kl": beyond[column]["kl"] / beyond["control"]["kl"],
            "equal": math.exp(beyond[column]["loss"] - beyond["equal_window"]["loss"])}


def general_text(context: Context, transfer_steps: int, finetune_steps: int, goals: dict[str, str]) -> Iterator[Row]:
    """The quickstart's recipe on the mixture of deploy/text, with more steps: in domain, and on three texts never seen."""
    mixture = context.cache / "data" / "mixture"
    if not (mixture / "card.json").exists():
        raise Skip(f"{mixture} is not there (deploy/text/make_mixture.py)")
    steps = f"{transfer_steps} + {finetune_steps} steps"
    found = []
    for seed in context.seeds:
        toml = (REPOSITORY / "deploy" / "recipes" / "smollm2_quickstart.toml").read_text()
        toml = re.sub(r"^seed *=.*$", f"seed = {seed}", toml, flags=re.MULTILINE)
        toml = with_values(toml, "model", {"path": f'"{context.model()}"'})
        paths = {name: mixture / "held_out" / f"{name}.txt" for name in NEVER_SEEN[:2]} | {OTHER: context.data("wikitext2_valid.txt")}
        texts = ", ".join(f'{{ name = "{name}", path = "{path}" }}' for name, path in paths.items())
        toml = with_values(toml, "data.evaluate", {"texts": f"[{texts}]", "max_sequences": "8"})
        toml = with_values(toml, "transfer", {"max_steps": str(transfer_steps)})
        toml = with_values(toml, "finetune", {"max_steps": str(finetune_steps)})
        status = run_recipe(context, f"general-{transfer_steps}-{finetune_steps}-seed{seed}", toml)
        result = next(task["result"] for task in status["tasks"] if task["id"] == "evaluate/lora")
        found.append({"the mixture's end": result, **result["texts"]})
    for text in found[0]:
        own = {"with": [of_text(one[text], "student") for one in found],
               "without": [of_text(one[text], "recall_off" if "recall_off" in one[text]["columns"] else "student") for one in found]}
        in_domain = text not in NEVER_SEEN
        for key, name, unit in (("gap", "gap closed", ""), ("kl", "KL over the control's", ""),
                                ("equal", "perplexity over that of the window of equal bytes", "x")):
            for cache, values in own.items():
                goal = goals.get(f"{key}, {cache}, {'in' if in_domain else 'off'}", "")
                yield Row(f"{steps}, {text}, {cache} the cache: {name}, median of {len(found)} seeds",
                          statistics.median(value[key] for value in values), unit, goal)


def general_quickstart(context: Context) -> Iterator[Row]:
    yield from general_text(context, 60, 30, {"gap, with, in": ">= 0.5", "gap, with, off": ">= 0.4"})


def general_million(context: Context) -> Iterator[Row]:
    """240 + 244 steps of 2,048 tokens: one million."""
    yield from general_text(context, 240, 244, {
        "gap, with, in": ">= 0.9", "gap, with, off": ">= 0.75", "gap, without, off": ">= 0.6", "kl, with, off": "<= 0.4",
        "equal, with, in": "<= 1", "equal, with, off": "<= 1"})


def block_size(context: Context) -> Iterator[Row]:
    """Layers per block 1, 5, 7 and 30 on all 30 layers, two steps of short sequences: how many different results?

    256 tokens: a terraced window of 64 leaves the maps nothing to do in the first 128.
    """
    digests = set()
    for k in (1, 5, 7, 30):
        toml = recipe_text(context, "smollm2_quickstart", 0)
        toml = with_values(toml, "data.transfer", {"seq_len": "256", "validation_sequences": "4", "max_sequences": "16"})
        toml = with_values(toml, "transfer", {"max_steps": "2", "validate_every": "1", "validation_sequences": "4"})
        toml = with_values(toml, "plan", {"layers_per_block": str(k)})
        run_recipe(context, f"k{k}", with_values(toml, "finetune", {"enabled": "false"}))
        student = sorted((context.work / f"run-k{k}").glob("student/*/feature_maps.safetensors"))
        if not student:
            raise Skip(f"the run with k = {k} left no student")
        digests.add(hashlib.sha256(student[-1].read_bytes()).hexdigest())
    yield Row("different feature maps among k = 1, 5, 7, 30", float(len(digests)), "", "== 1")
