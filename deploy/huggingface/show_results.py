"""The tables at the end of deploy/quickstart, from `hedgerow status --json` of a finished run.

  show_results.py --status STATUS.json --recipe run.toml [--json FILE]

--json writes {teacher, transfer, lora: {perplexity, control, equal_window, gap_closed, in_domain, mse_mean, mse_worst,
tokens_per_s, seconds, texts: {NAME: {perplexity, control, kl, control_kl, gap_closed, in_domain}}}}, kl and control_kl too: those outside texts are of
the validation part of [data.evaluate], `control` is the perplexity of the untrained control, `kl` the divergence from the teacher. null where a number does not exist (the teacher has no error, an unfinished
stage no speed, an earlier build's run no control).
"""

from __future__ import annotations

import argparse
import tomllib
from pathlib import Path
from typing import Any

from common import read_json, run_main, write_json

# subject of the evaluation -> (row's name, the stage that made it)
ROWS = {"teacher": ("teacher", "capture"), "transfer": ("after transfer", "transfer"), "lora": ("after LoRA", "finetune")}
LONGEST_NAME = 24  # columns of a text's name


def stage_tokens(subject: str, recipe: dict[str, Any], status: dict[str, Any]) -> int | None:
    """Tokens that the stage went through: each layer sees them once a step."""
    data, transfer, finetune = recipe["data"], recipe["transfer"], recipe["finetune"]
    if subject == "lora":
        done = next((task["result"] for task in status["tasks"] if task["stage"] == "finetune" and task.get("result")), {})
        return done.get("steps", finetune["max_steps"]) * finetune["sequences_per_step"] * data["finetune"]["seq_len"]
    steps = transfer["max_steps"] * transfer["sequences_per_step"]
    held = min(transfer["validation_sequences"], data["transfer"]["validation_sequences"]) if subject == "teacher" else 0
    return (steps + held) * data["transfer"]["seq_len"]


def text_results(found: dict[str, Any]) -> dict[str, Any]:
    """Of one text of an evaluation, or of its own split, whose keys stand beside the others."""
    columns = found.get("columns") or {}
    control, student = columns.get("control") or {}, columns.get("student") or {}
    return {"perplexity": found.get("perplexity"), "control": control.get("perplexity"),
            "equal_window": (columns.get("equal_window") or {}).get("perplexity"),
            "kl": student.get("kl"), "control_kl": control.get("kl"),
            "gap_closed": found.get("gap_closed"), "in_domain": found.get("in_domain")}


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
        table[subject] = {**text_results(found), "mse_mean": found.get("mse_mean"), "mse_worst": found.get("mse_worst"),
                          "tokens_per_s": round(tokens / seconds, 1) if seconds else None,
                          "seconds": round(seconds, 1) if seconds is not None else None,
                          "texts": {name: text_results(text) for name, text in (found.get("texts") or {}).items()}}
    return table


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def perplexity_of(value: float | None) -> str:
    """Of a model that predicts nothing it has eight digits, which no column has room for."""
    return shown(value, ".2f" if value is None or value < 1e5 else ".3g")


def stage_lines(table: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"{'':15}{'MSE mean':>10}{'MSE worst':>11}{'tokens/s':>10}{'seconds':>9}   stage"]
    for subject, (name, stage) in ROWS.items():
        row = table[subject]
        lines.append(f"{name:15}{shown(row['mse_mean'], '.4f'):>10}{shown(row['mse_worst'], '.4f'):>11}"
                     f"{shown(row['tokens_per_s'], ',.0f'):>10}{shown(row['seconds'], '.0f'):>9}   {stage}")
    return lines


def text_lines(table: dict[str, dict[str, Any]]) -> list[str]:
    """A row a text; the control is of the last evaluation, and the gap closed is that of the student after LoRA, or after
    transfer where there is no LoRA."""
    last = next((subject for subject in ("lora", "transfer") if table[subject]["perplexity"] is not None), "teacher")
    kl_lines = []
    names = ["validation", *(table[last]["texts"] or table["teacher"]["texts"])]
    width = min(max(map(len, names)), LONGEST_NAME) + 2
    lines = [f"{'perplexity on':{max(width, 15)}}{'':14}{'teacher':>9}{'control':>9}{'equal':>9}{'transfer':>10}{'LoRA':>9}"
             f"{'gap closed':>12}"]
    for name in names:
        rows = {subject: table[subject] if name == "validation" else table[subject]["texts"].get(name) or text_results({})
                for subject in ROWS}
        domain = {None: "-", True: "in domain", False: "not in domain"}[rows[last]["in_domain"]]
        lines.append(f"{name[:LONGEST_NAME]:{max(width, 15)}}{domain:14}{perplexity_of(rows['teacher']['perplexity']):>9}"
                     f"{perplexity_of(rows[last]['control']):>9}"
                     f"{perplexity_of(rows[last]['equal_window']):>9}{perplexity_of(rows['transfer']['perplexity']):>10}"
                     f"{perplexity_of(rows['lora']['perplexity']):>9}{shown(rows[last]['gap_closed'], '.1%'):>12}")
        kl_lines.append(f"{'  KL to the teacher':{max(width, 15) + 14}}{'':9}{shown(rows[last]['control_kl'], '.4f'):>9}"
                        f"{'':9}{shown(rows['transfer']['kl'], '.4f'):>10}{shown(rows['lora']['kl'], '.4f'):>9}")
    return lines[:1] + [line for pair in zip(lines[1:], kl_lines) for line in pair]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--status", required=True, type=Path)
    parser.add_argument("--recipe", required=True, type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    status, recipe = read_json(options.status), tomllib.loads(options.recipe.read_text(encoding="utf-8"))
    table = results(status, recipe)
    print("\n".join([*text_lines(table), "", *stage_lines(table)]))
    print("control: the student's window and sinks, untrained; equal: the untrained window of the bytes of the\n"
          "student's state; transfer, LoRA: the student after these stages; gap closed: beyond two windows,\n"
          "from the control to the teacher; MSE of a layer's attention output against the teacher's")
    if options.json:
        write_json(options.json, table)
    return 0


if __name__ == "__main__":
    run_main(main)
