"""What `hedgerow evaluate --tasks` runs: lm-eval's tasks over the subjects of a run, an export or a model directory.

Reads one JSON object on stdin: {"worker", "model", "subjects": [{"name", "arguments"}], "tasks", "limit", "shots", "chat",
"data", "lengths", "seed"}; an export instead has {"export": DIR} among its subjects and goes through lm-eval's own `hf`.
Writes progress lines and one {"tasks": {...}} on stdout. Exit codes: 0 ok, 2 bad input, 5 a package is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import EXIT_ENVIRONMENT, UsageError, run_main  # noqa: E402
from generated_records import MAKERS  # noqa: E402

OUT = sys.stdout
LONG_NEW_TOKENS = 2048
LONG_PROMPTS = ("The history of the lighthouse begins", "In the first chapter of the book we learn that",
                "The committee met on Monday to discuss", "A good garden needs")


def say(value: dict) -> None:
    print(json.dumps(value), file=OUT, flush=True)


def import_harness() -> None:
    try:
        import lm_eval  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"error: the Python package '{error.name}' is missing; deploy/setup --evaluate installs what tasks need",
              file=sys.stderr)
        sys.exit(EXIT_ENVIRONMENT)


def configs_of(name: str, job: dict) -> list[Any]:
    """What lm-eval takes for a task of this name: its own name, or configurations of ours."""
    import local_tasks
    import recall
    if name in MAKERS:
        samples = job["limit"] or 20
        each = -(-samples // len(job["lengths"]))
        return [recall.config(name, job["model"], job["lengths"], each, job["seed"])]
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise UsageError(f"{name}: no such file; --tasks takes names and YAML files of lm-eval")
        return [name]
    if job["data"] and name in local_tasks.TASKS:
        return local_tasks.TASKS[name](Path(job["data"]))
    if job["data"]:
        raise UsageError(f"--tasks {name}: no reader of local files; --data knows {', '.join(sorted(local_tasks.TASKS))}")
    return [name]


def manager_for(tasks: dict[str, list[Any]]):
    """lm-eval's own 14,000 tasks are read, in ten seconds, only where one of them is asked for."""
    from lm_eval.tasks import TaskManager
    names = [config for configs in tasks.values() for config in configs if isinstance(config, str)]
    files = [name for name in names if name.endswith((".yaml", ".yml"))]
    return TaskManager(include_path=sorted({str(Path(name).resolve().parent) for name in files}) or None,
                       include_defaults=len(files) < len(names))


def named(config: Any) -> Any:
    """A YAML file by the task's name in it."""
    if isinstance(config, dict) or not config.endswith((".yaml", ".yml")):
        return config
    import yaml

    class Loader(yaml.SafeLoader):
        pass
    Loader.add_multi_constructor("!", lambda *_: None)
    try:
        found = yaml.load(Path(config).read_text(encoding="utf-8"), Loader)  # noqa: S506: a SafeLoader
    except yaml.YAMLError as error:
        raise UsageError(f"{config}: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict) or not isinstance(found.get("task"), str):
        raise UsageError(f"{config}: no `task: NAME` in it; is this a task of lm-eval?")
    return found["task"]


def text_hash(samples: list[dict]) -> str:
    """Of what was asked, so that two tables can be known to be of the same texts."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(json.dumps(sample["arguments"], sort_keys=True, default=str).encode())
    return digest.hexdigest()[:16]


def metrics_of(result: dict) -> dict[str, dict[str, float]]:
    """{"acc": {"value", "stderr"}}, without lm-eval's suffixes of filters but where there are several."""
    found: dict[str, dict[str, float]] = {}
    for key, value in result.items():
        metric, _, filtered = key.partition(",")
        if not filtered or not isinstance(value, (int, float)):
            continue
        is_error = metric.endswith("_stderr")
        name = metric.removesuffix("_stderr") + ("" if filtered == "none" else f" ({filtered})")
        found.setdefault(name, {})["stderr" if is_error else "value"] = value
    return {name: figures for name, figures in found.items() if "value" in figures}


def by_group(samples: list[dict], key: str) -> dict[str, dict[str, float]]:
    """The exact matches of a generated task by depth (in tenths) or length."""
    groups: dict[str, list[float]] = {}
    for sample in samples:
        value = sample["doc"][key]
        label = f"{min(9, int(value * 10)) / 10:.1f}" if key == "depth" else str(value)
        groups.setdefault(label, []).append(sample["exact_match"])
    return {label: {"value": sum(values) / len(values), "n": len(values)} for label, values in sorted(groups.items())}


def evaluate(model: Any, configs: list[Any], manager: Any, job: dict) -> dict:
    from lm_eval.evaluator import simple_evaluate
    is_generated = isinstance(configs[0], dict) and configs[0]["output_type"] == "generate_until"
    with contextlib.redirect_stdout(sys.stderr):
        return simple_evaluate(model=model, tasks=[named(config) for config in configs], num_fewshot=job["shots"],
                               limit=None if is_generated else job["limit"], bootstrap_iters=1000,
                               apply_chat_template=job["chat"], fewshot_as_multiturn=job["chat"], log_samples=True,
                               task_manager=manager, random_seed=job["seed"], numpy_random_seed=job["seed"],
                               torch_random_seed=job["seed"], fewshot_random_seed=job["seed"])


def entry_of(name: str, found: dict, job: dict) -> dict:
    """What every subject's result of a task has in common: it is recorded once."""
    samples = [sample for task in found["samples"].values() for sample in task]
    versions = sorted({str(version) for version in found["versions"].values()})
    shots = sorted({config.get("num_fewshot") or 0 for config in found["configs"].values()})
    entry = {"samples": len(samples), "version": ", ".join(versions), "shots": shots[0] if len(shots) == 1 else shots,
             "seed": job["seed"], "text_hash": text_hash(samples), "subjects": {}}
    if job["chat"]:
        entry["chat_template"] = hashlib.sha256((found.get("chat_template") or "").encode()).hexdigest()[:16]
    if name in MAKERS:
        entry["lengths"] = job["lengths"]
    return entry


def subject_result(found: dict) -> dict:
    results = found["results"]
    own = [results[task] for task in found["samples"]]
    if len(own) == 1:
        figures = {"metrics": metrics_of(own[0])}
    else:  # a task of many parts: their mean by questions, as published
        counts = [len(found["samples"][task]) for task in found["samples"]]
        parts = [metrics_of(result) for result in own]
        figures = {"metrics": {metric: mean_of([part[metric] for part in parts], counts) for metric in parts[0]}}
    samples = [sample for task in found["samples"].values() for sample in task]
    if samples and isinstance(samples[0]["doc"], dict) and {"depth", "length"} <= samples[0]["doc"].keys():
        figures |= {"by_depth": by_group(samples, "depth"), "by_length": by_group(samples, "length")}
    return figures


def mean_of(parts: list[dict[str, float]], counts: list[int]) -> dict[str, float]:
    total = sum(counts)
    value = sum(part["value"] * count for part, count in zip(parts, counts)) / total
    errors = [part.get("stderr") for part in parts]
    if any(not isinstance(error, (int, float)) for error in errors):
        return {"value": value}
    return {"value": value, "stderr": sum((error * count) ** 2 for error, count in zip(errors, counts)) ** 0.5 / total}


def repetition(ids: list[int], size: int = 4) -> float:
    """The share of 4-grams that were there before."""
    grams = [tuple(ids[i:i + size]) for i in range(len(ids) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def long_generation(job: dict, models: dict[str, Any]) -> dict:
    """2,048 greedy tokens after short prompts: how much repeats itself, and what the teacher makes of it."""
    import math
    new = job["new_tokens"]
    entry = {"samples": len(LONG_PROMPTS), "version": "1.0", "shots": 0, "seed": job["seed"], "new_tokens": new, "subjects": {},
             "text_hash": hashlib.sha256(" ".join(LONG_PROMPTS).encode()).hexdigest()[:16]}
    for name, model in models.items():
        say({"event": "progress", "phase": f"long_generation: {name}", "progress": 0.0})
        prompts = [model.tok_encode(prompt) for prompt in LONG_PROMPTS]
        # No token ends a row: a model that stops early would be judged by less.
        rows = model.worker.ask({"generate": prompts, "max_new_tokens": new, "end_tokens": [-1]})["rows"]
        texts = [{"ids": prompt + row, "first": len(prompt)} for prompt, row in zip(prompts, rows)]
        scores = models["teacher"].worker.ask({"score": texts})["scores"]
        losses = [-value for one in scores for value in one["log_probabilities"]]
        repeated = [repetition(row) for row in rows]
        entry["subjects"][name] = {"metrics": {
            "repetition": {"value": sum(repeated) / len(repeated)},
            "teacher_perplexity": {"value": math.exp(sum(losses) / len(losses))}}}
    return entry


def main() -> int:
    job = {"limit": None, "shots": None, "chat": False, "data": "", "lengths": [1024], "seed": 1234,
           "new_tokens": LONG_NEW_TOKENS} | json.load(sys.stdin)
    import_harness()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    logging.getLogger().setLevel(logging.ERROR)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if job["data"] and not Path(job["data"]).is_dir():
        raise UsageError(f"--data {job['data']}: no such folder")
    import lm_eval
    from hedgerow_lm import Hedgerow
    from hedgerow_worker import WorkerFailed
    lm_eval.utils.eval_logger = logging.getLogger("lm_eval")
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    # What is missing is said before the first model is loaded.
    tasks = {name: configs_of(name, job) for name in job["tasks"] if name != "long_generation"}
    manager = manager_for(tasks)
    entries: dict[str, dict] = {}
    models: dict[str, Any] = {}
    try:
        for subject in job["subjects"]:
            model = subject_model(subject, job, Hedgerow)
            for index, (name, configs) in enumerate(tasks.items()):
                say({"event": "progress", "phase": f"tasks: {subject['name']}", "progress": index / len(tasks), "note": name})
                found = evaluate(model, configs, manager, job)
                entries.setdefault(name, entry_of(name, found, job))["subjects"][subject["name"]] = subject_result(found)
            if "long_generation" in job["tasks"] and isinstance(model, Hedgerow):
                models[subject["name"]] = model  # the teacher judges what the others write
            elif isinstance(model, Hedgerow):
                model.close()
        if "long_generation" in job["tasks"]:
            if "teacher" not in models:
                raise UsageError("--tasks long_generation: the teacher judges it; --subjects must have it")
            entries["long_generation"] = long_generation(job, models)
    except WorkerFailed as error:
        raise UsageError(str(error).removeprefix("error: ").removeprefix("hedgerow-worker: ")) from None
    except (KeyError, ValueError, FileNotFoundError) as error:
        if os.environ.get("HEDGEROW_TRACEBACK"):
            raise
        raise UsageError(f"--tasks {','.join(job['tasks'])}: lm-eval {lm_eval.__version__} says: {str(error).strip()[:300]}") from None
    finally:
        for model in models.values():
            model.close()
    say({"lm_eval": lm_eval.__version__, "tasks": entries})
    return 0


def subject_model(subject: dict, job: dict, hedgerow_class: type) -> Any:
    if "export" in subject:
        from lm_eval.models.huggingface import HFLM
        return HFLM(pretrained=subject["export"], trust_remote_code=True, dtype=subject.get("dtype", "float32"), device="cpu",
                    batch_size=1)
    return hedgerow_class(words=[job["worker"], "answer", *subject["arguments"]], model=job["model"])


if __name__ == "__main__":
    run_main(main)
