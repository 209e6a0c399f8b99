#!/usr/bin/env python3
"""A kill storm over whole runs: nothing is lost, nothing committed twice, and the bytes are those of a run in peace.

  tests/faults/kill_storm_test.py [--kills 1000] [--seed N] [--runs-of 50]     by hand; under ctest 25, 100 or 1,000 (support/budget/sizes.py)

Catches: work that is redone or done twice after a kill, a resume that leaves equal bytes, a coordinator that does not find
its own commits again, a checkpoint older than its interval. Prints one line of JSON. The seed fixes what is asked for, and
not when the processes come by: a failure names the run's own journal, which is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "support" / "budget"))
sys.path.append(str(Path(__file__).resolve().parent))
import job  # noqa: E402
import sizes  # noqa: E402
import storm  # noqa: E402

CHECKPOINT_EVERY = {"transfer": 4, "finetune": 2}
AT_LEAST = sizes.of_run(2, 5, 5)  # kills in each state

RECIPE = {  # on top of job.RECIPE: more blocks, steps and workers to kill in
    "data.transfer.max_sequences": 68,
    "data.finetune.max_sequences": 36,
    "plan.layers_per_block": 1,
    "transfer.max_steps": 30,
    "transfer.validate_every": 6,
    "transfer.checkpoint_every": CHECKPOINT_EVERY["transfer"],
    "finetune.objective": "mixed",
    "finetune.top_k": 16,
    "finetune.max_steps": 8,
    "finetune.validate_every": 4,
    "finetune.schedule": "plateau",
    "finetune.plateau_patience": 0,
    "finetune.checkpoint_every": CHECKPOINT_EVERY["finetune"],
    "workers.local": 4,
    "workers.orphan_timeout_s": 60,
}


class Storm:
    """As many runs as it takes."""

    def __init__(self, kills: int, kills_a_run: int, seed: int) -> None:
        self.kills, self.kills_a_run, self.seed = kills, kills_a_run, seed
        self.report = storm.Report()
        self.undisturbed = job.Job(RECIPE)
        self.root = Path(tempfile.mkdtemp(prefix="hedgerow-storm-", dir=self.undisturbed.root))

    def close(self) -> None:
        self.undisturbed.close()

    def blow(self) -> dict:
        begun = time.monotonic()
        ended = self.undisturbed.run()
        if ended.code != 0:
            raise AssertionError(f"the undisturbed run failed: {ended}")
        expected = self.undisturbed.artifacts()
        template = self.root / "template"  # a run that has its recipe and its tokens, and has computed nothing
        template.mkdir()
        shutil.copy(self.undisturbed.run_directory / "run.toml", template)
        shutil.copytree(self.undisturbed.run_directory / "tokens", template / "tokens")
        generator = random.Random(self.seed)
        while not self.is_enough():
            run = storm.StormyRun(template, self.root, self.next_wanted(), generator, self.report)
            self.report.runs += 1
            try:
                found = len(failures_of(self.report))
                run.weather()
                run.judge(expected, CHECKPOINT_EVERY)
                if len(failures_of(self.report)) > found:
                    self.keep(run)
            except BaseException:
                self.keep(run)
                raise
            finally:
                self.undisturbed.kill_leftovers()
            shutil.rmtree(run.run)
            print(f"run {run.number}: {sum(run.counted.values())} kills, {len(self.report.kills)} in all after "
                  f"{time.monotonic() - begun:.0f} s; not hit yet: {' '.join(sorted(self.report.unseen_places())) or 'none'}",
                  flush=True)
        return self.summary(time.monotonic() - begun)

    def next_wanted(self) -> dict[str, int]:
        """How many kills the next run is to have, by state."""
        left = self.kills - len(self.report.kills)
        lacking = {state: AT_LEAST - self.report.by("state").get(state, 0) for state in storm.REQUIRED}
        if left <= 0:
            return lacking
        return {state: max(1, round(share * min(left, self.kills_a_run)), lacking.get(state, 0))
                for state, share in storm.SHARES.items()}

    def has_each_state(self) -> bool:
        by_state = self.report.by("state")
        return all(by_state.get(state, 0) >= AT_LEAST for state in storm.REQUIRED)

    def is_enough(self) -> bool:
        return len(self.report.kills) >= self.kills and self.has_each_state() and not self.report.unseen_places()

    def keep(self, run: storm.StormyRun) -> None:
        kept = Path(tempfile.gettempdir()) / f"hedgerow-storm-{self.seed}" / f"run{run.number}"
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        for name in ("journal", "logs"):
            if (run.run / name).exists():
                shutil.copytree(run.run / name, kept / name)
        shutil.copy(run.log, kept)
        print(f"storm of seed {self.seed}: run {run.number}'s journal and logs are kept in {kept}", flush=True)

    def summary(self, seconds: float) -> dict:
        report = self.report
        return {"test": "kill storm", "seed": self.seed, "kills": len(report.kills), "runs": report.runs,
                "by_state": report.by("state"), "by_place": report.by("place"), "by_process": report.by("role"), "uncounted": report.uncounted,
                "lost": len(report.lost), "committed_twice": len(report.committed_twice), "byte_equal": report.byte_equal,
                "checkpoint_every": CHECKPOINT_EVERY, "measured_lost_steps": len(report.lost_steps),
                "largest_lost_steps": {stage: max([lost for lost, every, _ in report.lost_steps if every == CHECKPOINT_EVERY[stage]],
                                                  default=0) for stage in CHECKPOINT_EVERY},
                "retries_after_quarantine": report.retries_after_quarantine, "seconds": round(seconds, 1)}


def failures_of(report: storm.Report) -> list[str]:
    """What no run may do."""
    failures = report.lost + report.committed_twice
    if not report.byte_equal:
        failures.append("the artifacts have other bytes than those of the undisturbed run")
    for lost, every, kill in report.lost_steps:
        if lost > every:
            failures.append(f"{lost} steps lost, one checkpoint interval is {every}: {kill}")
    return failures


def gaps_in(summary: dict) -> list[str]:
    """States that were hit too seldom to say anything of them."""
    hits = summary["by_state"]
    return [f"only {hits.get(state, 0)} kills in {state}" for state in storm.REQUIRED if hits.get(state, 0) < AT_LEAST]


def blow(kills: int, kills_a_run: int, seed: int) -> list[str]:
    storm_ = Storm(kills, kills_a_run, seed)
    print(f"kill storm of seed {seed}", flush=True)
    try:
        summary = storm_.blow()
        print(json.dumps(summary), flush=True)
        return failures_of(storm_.report) + gaps_in(summary)
    finally:
        storm_.close()


class KillStorm(unittest.TestCase):
    def test_whatever_is_killed_in_whatever_state_nothing_is_lost_and_the_bytes_are_equal(self) -> None:
        seed = int(os.environ.get("HEDGEROW_STORM_SEED", random.SystemRandom().randrange(1, 10**6)))
        self.assertEqual(blow(sizes.of_run(25, 100, 1000), 50, seed), [], f"seed {seed}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--runs-of", type=int, default=50, help="kills a run; then it is left to finish")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 10**6))
    options = parser.parse_args()
    failures = blow(options.kills, options.runs_of, options.seed)
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
