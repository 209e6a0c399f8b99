"""SIGTERM in the middle of a stage: how many seconds until its lease is back. Its checkpoint is looked at in
tests/worker (pipeline_stop_test.cpp, finetune_task_test.cpp).

A preempted node has 30 s; hedgerow promises 10. Each stage here has one forward, one layer or one step that alone takes
longer than that, so that a task which looks up only between them fails. Prints one line of JSON a case.

Catches: a loop over sequences, layers or tensors that does not ask whether to stop; a rank that waits for its peers first; a
coordinator that answers a signal only when its children have.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]
import job  # noqa: E402
from disturbed import Disturbed, report  # noqa: E402
from processes import stat_of  # noqa: E402

LIMIT_S = 10
COMPUTED_S = 1.5  # of processor time of each process before the signal comes: it has loaded, and the forward is under way
INTERRUPTED = 4
TIMEOUT_S = 240  # for what is not measured: other work may have the machine
ENDS = ("released", "failed")
CHARACTERS = 1 << 20  # of text: about 260,000 tokens, of which the evaluation takes 196,608

RECIPE = {  # on top of job.RECIPE: few tasks, each with one long piece of work, and no stages but these
    "data.transfer.seq_len": 1024,
    "data.transfer.max_sequences": 12,
    "data.evaluate": None,
    "data.finetune": None,
    "plan.layers_per_block": 4,
    "plan.compute_dtype": "fp32",  # the slower one of most processors: less memory for the same seconds
    "plan.shard_mib": None,
    "transfer.max_steps": 1,
    "transfer.validate_every": 1,
    "transfer.checkpoint_every": None,
    "finetune": None,
    "finetune.enabled": False,
    "workers.local": 1,
    "workers.orphan_timeout_s": None,
}


def forward_of(sequences: int) -> dict[str, object]:
    """One forward of so many sequences is all of a shard, and all of a validation's data."""
    return {"data.transfer.validation_sequences": sequences, "data.transfer.max_sequences": 2 * sequences,
            "plan.sequences_per_forward": sequences, "transfer.sequences_per_step": sequences}


class Preempted(Disturbed):
    """A run that is signalled while the task of `stage` computes."""

    def __init__(self, test: unittest.TestCase, stage: str, sizes: dict[str, object]) -> None:
        super().__init__(test, {**RECIPE, **sizes}, job.excerpt(CHARACTERS))
        self.stage = stage

    def wait_until_it_computes(self, process: subprocess.Popen, *program: str, granted: int = 1) -> None:
        """Until the stage was granted so often, and its processes have computed for a while since."""
        def has_begun() -> bool:
            return len(self.events(self.stage, "granted")) >= granted and bool(self.named(*program))

        seen: dict[int, float] = {}  # by process, which may be another one by and by

        def has_computed() -> bool:
            computed = {pid: stat_of(pid).processor_seconds for pid in self.named(*program)}
            spent = [now - seen.setdefault(pid, now) for pid, now in computed.items()]
            return bool(spent) and min(spent) > COMPUTED_S

        self.until(process, has_begun, TIMEOUT_S)
        self.until(process, has_computed, TIMEOUT_S)

    def signalled(self, process: subprocess.Popen, pids: list[int], exits: bool = False) -> dict:
        """SIGTERM to these; what was measured until the lease is returned and, if it exits, until `hedgerow run` has."""
        ended = len(self.events(self.stage, *ENDS))
        begun = time.monotonic()
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        job.wait_until(lambda: self.events(self.stage, *ENDS)[ended:] or None, None if exits else process, TIMEOUT_S)
        measured = {"stage": self.stage, "seconds_to_lease_returned": round(time.monotonic() - begun, 2)}
        if exits:
            process.wait(TIMEOUT_S)
            measured |= {"seconds_to_exit": round(time.monotonic() - begun, 2), "exit_code": process.returncode}
        return measured | {"ended_as": self.events(self.stage, *ENDS)[-1]["type"]}


class InTheMiddleOfAStage(unittest.TestCase):
    def check(self, measured: dict, whom: str) -> None:
        report("preemption", signalled=whom, limit_s=LIMIT_S, **measured)
        self.assertEqual(measured["ended_as"], "released", "a stop that was asked for counts as a failure")
        self.assertLess(measured["seconds_to_lease_returned"], LIMIT_S)
        self.assertEqual(measured.get("exit_code", INTERRUPTED), INTERRUPTED)

    def check_pulled(self, stage: str, sizes: dict[str, object], command: str = "serve", launcher: str = "") -> None:
        """SIGTERM to the workers, as an array task gets it, and, once their successors compute, to the coordinator."""
        run = Preempted(self, stage, sizes)
        with run.going() as process:
            run.wait_until_it_computes(process, "hedgerow-worker", command)
            pids = run.named("hedgerow-worker", command) + (run.named(launcher) if launcher else [])
            self.check(run.signalled(process, pids), f"ranks and {launcher}" if launcher else "worker")
            run.wait_until_it_computes(process, "hedgerow-worker", command, granted=2)
            self.check(run.signalled(process, [process.pid], exits=True), "coordinator")

    def test_a_capture_gives_its_lease_back_in_time(self) -> None:
        self.check_pulled("capture", {**forward_of(64), "plan.layers_per_block": 3})

    def test_a_transfer_that_validates_gives_its_lease_back_in_time(self) -> None:
        self.check_pulled("transfer", {**forward_of(64), "transfer.validation_sequences": 64})

    def test_a_transfer_that_trains_gives_its_lease_back_in_time(self) -> None:
        self.check_pulled("transfer", {**forward_of(64), "transfer.validation_sequences": 1})

    def test_an_evaluation_gives_its_lease_back_in_time(self) -> None:
        self.check_pulled("evaluate", {"data.evaluate.seq_len": 1024, "data.evaluate.validation_sequences": 192})

    def test_a_finetune_stage_gives_its_lease_back_in_time(self) -> None:
        sizes = {"finetune.enabled": True, "finetune.max_steps": 2, "finetune.validate_every": 0, "finetune.threads": 1,
                 "finetune.ranks": 2, "finetune.sequences_per_step": 32, "data.finetune.seq_len": 1024,
                 "data.finetune.max_sequences": 68}
        self.check_pulled("finetune", sizes, "finetune", "mpirun")


if __name__ == "__main__":
    unittest.main()
