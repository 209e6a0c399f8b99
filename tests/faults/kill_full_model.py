#!/usr/bin/env python3
"""By hand: a recipe on a whole model, killed in every stage and resumed, against an undisturbed run of the same recipe.

  tests/faults/kill_full_model.py --recipe FILE --run DIR --undisturbed DIR [--build build/cpu]

SIGKILL to a worker and to the coordinator while capturing and while transferring, to the coordinator while assembling, to
an MPI rank and to the coordinator while finetuning; each when `hedgerow status` says that the stage is under way. Exit
codes: 0 equal bytes, 1 other bytes or a run that does not end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "tests" / "support"))
from job import artifacts_of  # noqa: E402

COORDINATOR, WORKER, RANK = ("hedgerow", "run"), ("hedgerow-worker", "serve"), ("hedgerow-worker", "finetune")
# (stage, share of it that is done, who dies); in the order in which a run comes by.
KILLS = [("capture", 0.2, WORKER), ("capture", 0.5, COORDINATOR), ("transfer", 0.2, WORKER), ("transfer", 0.6, COORDINATOR),
         ("finetune", 0.3, RANK), ("finetune", 0.6, COORDINATOR)]
ASSEMBLING = "coordinator.student.written:1"  # over in a moment, so it is killed at a named place


def processes(kind: tuple[str, str], run: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if len(words) > 2 and Path(os.fsdecode(words[0])).name == kind[0] and words[1] == os.fsencode(kind[1]) and \
                os.fsencode(run) in words:
            found.append(int(entry.name))
    return found


def share_done(status: dict, name: str) -> float:
    return next((stage["fraction"] for stage in status["stages"] if stage["stage"] == name), 0.0)


class Disturbed:
    def __init__(self, program: Path, recipe: Path, run: Path):
        self._program, self._recipe, self._run = program, recipe, run
        self._command: subprocess.Popen | None = None

    def start(self, fault: str = "") -> None:
        environment = {**os.environ}
        if fault:
            environment |= {"HEDGEROW_FAULT": fault, "HEDGEROW_FAULT_ONCE": f"{self._run}.killed"}
        self._command = subprocess.Popen([self._program, "run", "--run", self._run, "--recipe", self._recipe], env=environment,
                                         stdout=subprocess.DEVNULL, start_new_session=True)

    def status(self) -> dict | None:
        done = subprocess.run([self._program, "status", "--run", self._run, "--json"], capture_output=True, text=True)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def ended(self) -> int | None:
        return self._command.poll()

    def kill(self, kind: tuple[str, str]) -> None:
        victim = processes(kind, self._run)[0]
        os.kill(victim, signal.SIGKILL)
        print(f"killed {' '.join(kind)} (pid {victim})", flush=True)
        if kind is COORDINATOR:
            self._command.wait()
            self.start(ASSEMBLING)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--undisturbed", type=Path, required=True)
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build" / "cpu")
    options = parser.parse_args()
    run = options.run.resolve()
    disturbed = Disturbed(options.build.resolve() / "bin" / "hedgerow", options.recipe, run)
    disturbed.start()
    waiting = list(KILLS)
    while True:
        time.sleep(0.5)
        if disturbed.ended() is not None:
            if disturbed.ended() != -signal.SIGKILL:
                break
            print(f"killed at {ASSEMBLING}", flush=True)
            disturbed.start()
            continue
        status = disturbed.status()
        if waiting and status:
            stage, share, kind = waiting[0]
            if share_done(status, stage) >= share and processes(kind, run):
                disturbed.kill(kind)
                waiting.pop(0)
    print(f"hedgerow run ended with {disturbed.ended()}; kills left: {waiting}")
    ours, theirs = artifacts_of(run), artifacts_of(options.undisturbed)
    for name in theirs:
        print(f"{name}: {'equal' if ours[name] == theirs[name] else 'OTHER BYTES'} ({ours[name][:16]}, {theirs[name][:16]})")
    return 0 if disturbed.ended() == 0 and not waiting and ours == theirs else 1


if __name__ == "__main__":
    sys.exit(main())
