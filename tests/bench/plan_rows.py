"""What a plan foretold and what came: six runs of the whole SmolLM2-135M over k, T and workers, after `doctor --calibrate`;
and how long a plan of a model of 405B takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_common import REPOSITORY, Context, Row, against

sys.path.append(str(REPOSITORY / "tests" / "support"))

from sparse_model import write_sparse_model  # noqa: E402

# Shorter stages are starts of processes, which no plan can tell by a quarter.
LEAST_SECONDS = 5.0


@dataclass(frozen=True)
class Run:
    layers_per_block: int
    seq_len: int
    workers: int
    objective: str

    @property
    def name(self) -> str:
        return f"k = {self.layers_per_block}, T = {self.seq_len}, {self.workers} workers, {self.objective}"


RUNS = (Run(5, 512, 2, "kl"), Run(10, 256, 1, "ce"), Run(3, 1024, 2, "ce"),
        Run(15, 512, 1, "kl"), Run(30, 256, 2, "ce"), Run(8, 1024, 1, "ce"))

RECIPE = """seed = 0
[model]
path = "{model}"
[data.transfer]
seq_len = {seq_len}
validation_sequences = 8
max_sequences = {sequences}
sources = [{{ path = "{text}", format = "text" }}]
[data.finetune]
sources = [{{ path = "{text}", format = "text" }}]
[data.evaluate]
validation_sequences = 4
sources = [{{ path = "{text}", format = "text" }}]
[attention]
feature_dim = 128
[plan]
layers_per_block = {k}
sequences_per_forward = {per_forward}
shard_mib = 32
[transfer]
max_steps = 20
sequences_per_step = {per_forward}
validation_sequences = 4
[finetune]
objective = "{objective}"
max_steps = 8
sequences_per_step = 4
validate_every = 0
ranks = {workers}
threads = {threads}
[workers]
local = {workers}
threads = {threads}
"""


class DiskMeter:
    """The most bytes that the files of a folder had, looked at five times a second."""

    def __init__(self, folder: Path):
        self.most = 0
        self._folder, self._over = folder, threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.2):
            total = 0
            for path in self._folder.rglob("*"):
                try:
                    total += path.stat().st_size if path.is_file() else 0
                except OSError:
                    continue  # it went meanwhile
            self.most = max(self.most, total)

    def __enter__(self) -> DiskMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def answer(context: Context, *arguments: Any) -> dict[str, Any]:
    done = subprocess.run([context.program("hedgerow"), *arguments, "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow {arguments[0]}: {done.stderr.strip()[-500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def peaks(status: dict[str, Any]) -> dict[str, int]:
    """The largest peak of a process, by stage."""
    most: dict[str, int] = {}
    for task in status["tasks"]:
        peak = ((task.get("result") or {}).get("peak_memory") or {}).get("host_bytes", 0)
        most[task["stage"]] = max(most.get(task["stage"], 0), peak)
    return most


def planned_and_found(context: Context, calibrated: Path, run: Run) -> dict[str, list[tuple[str, float, float]]]:
    """(stage, planned, found) of memory, disk and time."""
    folder = context.work / f"plan-{run.layers_per_block}-{run.seq_len}-{run.workers}"
    recipe, cluster = folder.with_suffix(".toml"), folder.with_suffix(".cluster.toml")
    per_forward = 4 if run.seq_len <= 512 else 2
    recipe.write_text(RECIPE.format(
        model=context.model(), seq_len=run.seq_len, sequences=20 * per_forward, text=context.cache / "data" / "jargon.txt.gz",
        k=run.layers_per_block, per_forward=per_forward, objective=run.objective, workers=run.workers, threads=1))
    cluster.write_text(f"{calibrated.read_text()}\n[workers]\ntasks_per_node = {run.workers}\n")
    with DiskMeter(folder) as disk:
        subprocess.run([context.program("hedgerow"), "run", "--run", folder, "--recipe", recipe, "--cluster", cluster,
                        "--workers", str(run.workers), "--web", "none", "-q"], check=True, capture_output=True)
    plan = answer(context, "plan", "--run", folder, "--cluster", cluster)
    status = answer(context, "status", "--run", folder)
    stages = {stage["stage"]: stage for stage in plan["estimates"]}
    found_memory = peaks(status)
    return {
        "memory": [(name, stage["memory_bytes"], found_memory[name]) for name, stage in stages.items()
                   if stage["memory_bytes"] > 0 and found_memory.get(name)],
        "disk": [("all", plan["peak_disk_bytes"], disk.most)],
        "time": [(stage["stage"], stages[stage["stage"]]["seconds"], stage["seconds"]) for stage in status["stages"]
                 if stage["stage"] in stages and stage["seconds"] >= LEAST_SECONDS],
    }


def worst(pairs: list[tuple[str, float, float]]) -> tuple[float, str]:
    """The largest deviation in per cent, and of which stage with which figures."""
    deviations = [(100.0 * abs(planned / found - 1.0), f"{stage}: planned {planned:.4g}, found {found:.4g}")
                  for stage, planned, found in pairs]
    return max(deviations)


def plan(context: Context) -> Iterator[Row]:
    calibrated = context.work / "calibrated.toml"
    calibrated.unlink(missing_ok=True)
    answer(context, "doctor", "--calibrate", calibrated, "--dir", context.work)
    goals = {"memory": "<= 10", "disk": "<= 2", "time": "<= 25"}
    for run in RUNS:
        for what, pairs in planned_and_found(context, calibrated, run).items():
            for stage, planned, found in pairs:
                print(f"      {stage}: {what} planned {planned:.4g}, found {found:.4g}", flush=True)
            deviation, where = worst(pairs)
            yield Row(f"{run.name}: {what} ({where})", deviation, "%", goals[what])
    wide = context.work / "wide-405b"
    write_sparse_model(wide, layers=126, hidden=16384, intermediate=53248, heads=128, kv_heads=8)
    recipe = context.work / "wide-405b.toml"
    recipe.write_text(RECIPE.format(model=wide, seq_len=1024, sequences=0, text=context.cache / "data" / "jargon.txt.gz", k=9,
                                    per_forward=1, objective="ce", workers=1, threads=1))
    command = [context.program("hedgerow"), "plan", "--recipe", recipe, "--cluster",
               REPOSITORY / "deploy" / "clusters" / "3x8x80gb.toml"]
    seconds = []
    for _ in range(context.repeats):
        begin = time.perf_counter()
        subprocess.run(command, capture_output=True, check=False)  # 2: LoRA of it does not fit
        seconds.append(time.perf_counter() - begin)
    yield Row("plan of a run of 405B", sorted(seconds)[len(seconds) // 2], "s", "<= 0.5")
    yield lora_of_405b(context, wide)


def lora_of_405b(context: Context, model: Path) -> Row:
    """Arithmetic beside the paper's 384 GPU-hours: the shipped recipe's 20 M tokens on 128 ranks, in steps of 128 sequences."""
    shipped = (REPOSITORY / "deploy" / "recipes" / "llama3_405b.toml").read_text()
    text = context.cache / "data" / "jargon.txt.gz"
    head, finetune = shipped.split("[finetune]\n")
    for pattern, line in ((r"^ranks = 16", "ranks = 128"), (r"^sequences_per_step = 8", "sequences_per_step = 128"),
                          (r"^max_steps = 2442", "max_steps = 153"), (r"^validate_every = 100", "validate_every = 50")):
        finetune = re.sub(pattern, line, finetune, flags=re.MULTILINE)
    head = re.sub(r"^path = .*", f'path = "{model}"', head, flags=re.MULTILINE)
    head = re.sub(r"^sources = .*", f'sources = [{{ path = "{text}", format = "text" }}]', head, flags=re.MULTILINE)
    recipe = context.work / "lora-405b.toml"
    recipe.write_text(f"{head}[finetune]\n{finetune}")
    planned = answer(context, "plan", "--recipe", recipe, "--cluster", REPOSITORY / "deploy" / "clusters" / "16x8x80gb.toml")
    hours = next(stage["gpu_hours"] for stage in planned["estimates"] if stage["stage"] == "finetune")
    return against(f"LoRA of 405B on 128 GPUs, as {planned['mesh']}, idle {100 * planned['mesh_idle']:.0f} % (assumed speeds)", hours,
                   "GPU-hours", "<= 1", "the paper's, measured, in steps of its own", 384)
