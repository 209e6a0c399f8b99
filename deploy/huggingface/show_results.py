"""The table at the end of deploy/quickstart, from `hedgerow status --json` of a finished run.

  show_results.py --status STATUS.json --recipe run.toml [--json FILE]

--json writes {teacher, transfer, lora: {perplexity, mse_mean, mse_worst, tokens_per_s, seconds}}; null where a number does
not exist (the teacher has no error, an unfinished stage no speed).
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from common import read_json, run_main, write_json

# subject of the evaluation -> (row's name, the stage that made it)
ROWS = {"teacher": ("teacher", "capture"), "transfer": ("after transfer", "transfer"), "lora": ("after LoRA", "finetune")}


def stage_tokens(subject: str, recipe: dict[str, Any], status: dict[str, Any]) -> int | None:
    """Tokens that the stage went through: each layer sees them once a step."""
    data, transfer, finetune = recipe["data"], recipe["transfer"], recipe["finetune"]
    if subject == "lora":
        return finetune["max_steps"] * finetune["sequences_per_step"] * data["finetune"]["seq_len"]
    steps = transfer["max_steps"] * transfer["sequences_per_step"]
    held = min(transfer["validation_sequences"], data["transfer"]["validation_sequences"]) if subject == "teacher" else 0
    return (steps + held) * data["transfer"]["seq_len"]


def results(status: dict[str, Any], recipe: dict[str, Any]) -> dict[str, dict[str, Any]]:
    stages = {stage["stage"]: stage for stage in status["stages"]}
    evaluations = {task["id"].removeprefix("evaluate/"): task.get("result") or {}
                   for task in status["tasks"] if task["stage"] == "evaluate"}
    table = {}
    for subject, (_, stage_name) in ROWS.items():
        found, stage = evaluations.get(subject, {}), stages.get(stage_name, {})
        finished = stage.get("total", 0) > 0 and stage.get("done") == stage.get("total")
        seconds = stage.get("seconds") if finished else None
        tokens = stage_tokens(subject, recipe, status)
        table[subject] = {"perplexity": found.get("perplexity"), "mse_mean": found.get("mse_mean"),
                          "mse_worst": found.get("mse_worst"),
                          "tokens_per_s": round(tokens / seconds, 1) if seconds else None,
                          "seconds": round(seconds, 1) if seconds is not None else None}
    return table


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--status", required=True, type=Path)
    parser.add_argument("--recipe", required=True, type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    status, recipe = read_json(options.status), tomllib.loads(options.recipe.read_text(encoding="utf-8"))
    table = results(status, recipe)
    print(f"{'':16}{'perplexity':>11}{'MSE mean':>11}{'MSE worst':>11}{'tokens/s':>10}{'seconds':>9}   stage")
    for subject, (name, stage) in ROWS.items():
        row = table[subject]
        print(f"{name:16}{shown(row['perplexity'], '.2f'):>11}{shown(row['mse_mean'], '.4f'):>11}"
              f"{shown(row['mse_worst'], '.4f'):>11}{shown(row['tokens_per_s'], ',.0f'):>10}"
              f"{shown(row['seconds'], '.0f'):>9}   {stage}")
    print("perplexity on held-out text; MSE of a layer's attention output against the teacher's")
    if options.json:
        write_json(options.json, table)
    return 0


if __name__ == "__main__":
    run_main(main)
