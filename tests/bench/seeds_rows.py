"""The papers' findings on SmolLM2: one study of variants and one probe of it; and, apart, last stages.

A row a finding: the paper's figure stands in its name, ours is the value, the goal is the paper's direction. The verdict is
"reproduced", "not", or "undecided" where the seeds of the two sides overlap or there is one. Nothing is tuned for them: the
settings are the quickstart's, three layers of thirty, 50 steps of 4 x 512 tokens. And whether such a study predicts what all
layers do.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
from pathlib import Path
from typing import Any, Callable, Iterator

from bench_common import REPOSITORY, Context, Row, Skip
from quality_rows import run_recipe, with_values

TRAINED = (3, 15, 29)
VARIANTS = """
[[variants]]
name = "t2r"
seeds = {seeds}
attention.feature_map = "t2r"
attention.negation = false

[[variants]]
name = "hedgehog"
seeds = {seeds}

[[variants]]
name = "no-negation"
seeds = {seeds}
attention.negation = false

[[variants]]
name = "terraced-64"
seeds = {seeds}
attention.recall_cache = 0

[[variants]]
name = "window-4"
seeds = {seeds}
attention.window = "sliding"
attention.window_size = 4
attention.recall_cache = 0

[[variants]]
name = "window-16"
seeds = {seeds}
attention.window = "sliding"
attention.window_size = 16
attention.recall_cache = 0

[[variants]]
name = "window-64"
seeds = {seeds}
attention.window = "sliding"
attention.recall_cache = 0

[[variants]]
name = "window-256"
seeds = {seeds}
attention.window = "sliding"
attention.window_size = 256
attention.recall_cache = 0

[[variants]]
name = "linear-hedgehog"
seeds = {seeds}
attention.window = "none"
attention.num_sinks = 0
attention.recall_cache = 0
attention.linear_cap = 0
transfer.mse_factor = 0.0
transfer.xent_factor = 1.0
"""


def recipe_of(context: Context) -> str:
    """The quickstart's, on the mixture."""
    if not (context.cache / "data" / "mixture" / "card.json").exists():
        raise Skip(f"{context.cache / 'data' / 'mixture'} is not there (deploy/text/make_mixture.py)")
    toml = (REPOSITORY / "deploy" / "recipes" / "smollm2_quickstart.toml").read_text()
    return with_values(toml, "model", {"path": f'"{context.model()}"'})


def study(context: Context) -> tuple[Path, dict[str, list[dict[str, Any]]]]:
    """The run, and of each variant what the evaluation has of its seeds; with "trained", each layer's error at its best validation."""
    kept = [layer for layer in range(30) if layer not in TRAINED]
    toml = with_values(recipe_of(context), "transfer", {"max_steps": "50", "softmax_layers": json.dumps(kept)})
    toml = with_values(toml, "finetune", {"enabled": "false"}) + VARIANTS.format(seeds=len(context.seeds))
    status = run_recipe(context, "seeds", toml)
    run = context.work / "run-seeds"
    trained: dict[str, list[float]] = {}
    for task in status["tasks"]:
        if task["id"].startswith("transfer/"):
            for one in task["result"]["variants"]:
                trained.setdefault(one["student"], []).extend(one["trained_relative_mse"])
    token = next(task["token"] for task in status["tasks"] if task["id"] == "evaluate/transfer")
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads((run / "evaluate" / f"transfer.t{token}.json").read_text())["variants"]:
        found.setdefault(one["variant"], []).append(one | {"trained": trained[one["student"]]})
    return run, found


def divergence(evaluation: dict[str, Any]) -> float:
    """KL to the teacher over all positions, the mean over the texts."""
    return statistics.fmean(text["columns"]["student"]["kl"] for text in (evaluation, *evaluation["texts"].values()))


def verdict(goal: str, pairs: list[float], overlap: bool) -> str:
    sign, bound = goal.split()
    if overlap:
        return "undecided"
    ratio = statistics.median(pairs)
    return "reproduced" if (ratio >= float(bound) if sign == ">=" else ratio <= float(bound)) else "not"


def compared(finding: str, worse: list[float], better: list[float], unit: str = "x") -> Row:
    """worse / better, which the paper says is above 1."""
    ratio = statistics.median(worse) / statistics.median(better)
    # One seed has no spread; what is drawn from none, as a fixed map, needs none.
    overlap = max(len(worse), len(better)) == 1 or (min(worse) <= max(better) and min(better) <= max(worse))
    return Row(f"{finding}: {verdict('>= 1', [ratio], overlap)}", ratio, unit, ">= 1")


def probe_of(context: Context, run: Path, *more: str | Path) -> list[dict[str, Any]]:
    done = subprocess.run([context.program("hedgerow"), "probe", *(("--run", run) if not more else more), "--layers",
                           ",".join(map(str, TRAINED)), "--max-sequences", "2", "--json", "--device", "cpu"],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow probe exits {done.returncode}: {done.stderr.strip()[-500:]}")
    return [head for layer in json.loads(done.stdout)["layers"] for head in layer["heads"]]


def mean_of(heads: list[dict[str, Any]], of: Callable[[dict[str, Any]], float | None]) -> float:
    return statistics.fmean(value for head in heads if (value := of(head)) is not None)


def learned_and_fixed(context: Context, run: Path) -> Iterator[Row]:
    """Papers 000 (figures 2, 3, 5), 001 and 004 by the probe."""
    newest = max(run.glob("student/*"), key=lambda path: int(path.name.lstrip("t")))
    tokens = run / "tokens" / "evaluate.h5"
    heads = probe_of(context, run)
    learned = [probe_of(context, run, "--student", newest / "variants" / f"linear-hedgehog.s{seed}", "--model", context.model(),
                        "--tokens", tokens) for seed in range(len(context.seeds))]
    fixed = [name for name in heads[0]["maps"]]
    softmax = mean_of(heads, lambda head: head["softmax"]["entropy"])
    for name in fixed:
        entropy = mean_of(heads, lambda head: head["maps"][name]["entropy"])
        own = [mean_of(one, lambda head: head["student"]["entropy"]) for one in learned]
        yield compared(f"entropy of {name} over the learned Hedgehog map's (000 fig. 2: learned is spikier; softmax itself {softmax:.2f}"
                       f" nats, learned {statistics.median(own):.2f})", [entropy], own)
        monotone = mean_of(heads, lambda head: head["maps"][name]["monotonicity"])
        own = [mean_of(one, lambda head: head["student"]["monotonicity"]) for one in learned]
        yield Row(f"rank correlation of weight and score, learned Hedgehog ({statistics.median(own):.2f}) less {name} (000 figs. 3, 5:"
                  f" learned is monotone): {'reproduced' if min(own) > monotone else 'not' if max(own) < monotone else 'undecided'}",
                  statistics.median(own) - monotone, "", ">= 0")
    if heads[0].get("favor"):
        features = [head["favor"]["log10_features"] for head in heads if head["favor"]["log10_features"] is not None]
        found = statistics.median(features)
        yield Row("log10 of the random features that an error of 0.1 needs, median head (001: 64 to 128 are enough on its stories): "
                  + ("reproduced" if found <= 2.1 else "not"), found, "", "<= 2.1")
    if heads[0].get("series"):
        errors = [[head["series"]["error_of_order"][order] for head in heads] for order in (2, 10)]
        second, tenth = (statistics.median(value for value in own if value is not None) for own in errors)
        yield Row(f"error of the exponential's series, order 10 ({tenth:.3f}, of 2 at most) over order 2 (004: order 10 is softmax, of a"
                  f" model that learned with it): {'reproduced' if tenth <= 0.1 * second else 'not'}", tenth / second, "x", "<= 0.1")


def seeds(context: Context) -> Iterator[Row]:
    run, found = study(context)
    kl = {name: [divergence(one) for one in each] for name, each in found.items()}
    yield compared("error of T2R's attention as trained over Hedgehog's (000 table 2: 74.0 against 82.7 of 83.3; 002 table 2)",
                   *([statistics.fmean(one["trained"]) for one in found[name]] for name in ("t2r", "hedgehog")))
    # A layer behind its window is exported as that window: then no T2R is compared.
    untrained = sum(bool(layer.get("kept_untrained")) for one in found["t2r"] for layer in one["layers"])
    of = f"{untrained} of T2R's {sum(len(one['layers']) for one in found['t2r'])} layers kept untrained"
    row = compared(f"KL of T2R over Hedgehog (the same; {of})", kl["t2r"], kl["hedgehog"])
    if untrained:
        row.name = row.name.rpartition(": ")[0] + ": undecided"
    yield row
    yield compared("KL of a map without negation over one with it, at as many bytes (000: 2d features)", kl["no-negation"], kl["hedgehog"])
    yield compared("KL of window 4 over 16 (002 table 18: 16 better)", kl["window-4"], kl["window-16"])
    yield compared("KL of window 4 over 64 (002 table 18: 64 better)", kl["window-4"], kl["window-64"])
    yield compared("KL of window 256 over 64, T = 512 (002 table 18: 256 is worse)", kl["window-256"], kl["window-64"])
    both = statistics.median(kl["window-64"]) / statistics.median(kl["terraced-64"])
    yield Row("KL of a sliding window over a terraced one (002 table 18: alike, 70.3 and 70.7)", abs(both - 1), "off 1", "<= 0.1")
    yield from learned_and_fixed(context, run)


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's, of values without ties."""
    ranks = [[sorted(values).index(value) for value in values] for values in (a, b)]
    return statistics.correlation(*ranks)


def order(context: Context) -> Iterator[Row]:
    """Whether a study (six layers, two seeds) has the order of students whose every layer was linearized, and what it takes."""
    mixture = context.cache / "data" / "mixture"
    recipe_of(context)
    recipe = context.work / "study.toml"
    recipe.unlink(missing_ok=True)
    subprocess.run([context.program("hedgerow"), "init", context.model(), "--data", mixture / "mixture.txt", "--study", "--out", recipe],
                   check=True, capture_output=True)
    toml = recipe.read_text()
    for section in ("data.transfer", "data.evaluate"):
        toml = with_values(toml, section, {"seq_len": "512", "validation_sequences": "4"})
    names = ("persuasion", "devils-dictionary", "jargon-end")
    texts = ", ".join(f'{{ name = "{name}", path = "{mixture / "held_out" / name}.txt" }}' for name in names)
    toml = with_values(toml, "data.evaluate", {"texts": f"[{texts}]"})
    status = run_recipe(context, "study", toml)
    rows = {row["variant"]: row for row in status["variants"]}
    yield Row("init --study: 7 variants of two seeds and the recipe's own, 6 layers, 50 steps", status["elapsed_seconds"] / 60, "min",
              "<= 30")
    told = subprocess.run([context.program("hedgerow"), "metrics", "--run", context.work / "run-study", "--variants", "--json"],
                          check=True, capture_output=True, text=True)
    planned = sum(row["whole_job"]["seconds"] for row in json.loads(told.stdout)["variants"])
    yield Row("the study's time over the planned one of its nine whole jobs", status["elapsed_seconds"] / planned, "", "<= 0.1")
    whole = with_values(re.sub(r"(?m)^seeds = \d+\n", "", toml), "transfer", {"softmax_layers": "[]"})
    all_layers = {row["variant"]: row for row in run_recipe(context, "study-all-layers", whole)["variants"]}

    def correlation(figure: str, names: list[str]) -> float:
        return rank_correlation([rows[name][figure]["median"] for name in names], [all_layers[name]["kl"]["median"] for name in names])

    yield Row("rank correlation of KL, six layers against all thirty (50 steps of transfer, no LoRA)", correlation("kl", sorted(rows)),
              "", ">= 0.8")
    trained = [name for name in sorted(rows) if rows[name]["kept_untrained"] == 0]
    yield Row(f"the same of the {len(trained)} variants without a layer that was kept untrained", correlation("kl", trained), "", ">= 0.8")
    yield Row("the same of all by the study's relative MSE, which needs no evaluation", correlation("relative_mse", sorted(rows)), "",
              ">= 0.8")


def last_stage(context: Context) -> Iterator[Row]:
    """002 tables 2, 12, 16, 17: 20 + 20 steps, last stages on one student a seed."""
    def kl(label: str, finetune: dict[str, str], transfer: dict[str, str] | None = None, subject: str = "lora") -> list[float]:
        found = []
        for seed in context.seeds:
            toml = re.sub(r"^seed *=.*$", f"seed = {seed}", recipe_of(context), flags=re.MULTILINE)
            toml = with_values(toml, "data.evaluate", {"validation_sequences": "2", "max_sequences": "2"})
            toml = with_values(toml, "transfer", {"max_steps": "20", **(transfer or {})})
            toml = with_values(toml, "finetune", {"max_steps": "20", "trainable": '["lora"]', **finetune})
            student = "" if transfer or label == "rank-8" else f"last-rank-8-seed{seed}"
            status = run_recipe(context, f"last-{label}-seed{seed}", toml, student)
            found.append(divergence(next(task["result"] for task in status["tasks"] if task["id"] == f"evaluate/{subject}")))
        return found

    own = kl("rank-8", {"rank": "8"})
    yield compared("KL of rank 128 over 4 (002 table 16: 4 is best)", kl("rank-128", {"rank": "128"}), kl("rank-4", {"rank": "4"}))
    yield compared("KL of LoRA on q, k over on v, o (002 table 17: v and o matter most)",
                   kl("qk", {"rank": "8", "target_modules": '["q_proj", "k_proj"]'}),
                   kl("vo", {"rank": "8", "target_modules": '["v_proj", "o_proj"]'}))
    first = json.dumps(list(range(15)))
    yield compared("KL of LoRA on all layers over the first half kept as softmax, transfer alone (002 table 12: 94 % of the gap)", own,
                   kl("half", {"enabled": "false"}, {"softmax_layers": first}, "transfer"))
    yield compared("KL after LoRA without transfer, every layer its window alone, over with it (002 table 2: transfer first)",
                   kl("no-transfer", {"rank": "8"}, {"max_steps": "1", "learning_rate": "1e-9"}), own)
