"""Runs on a real slurmctld: over its wall-time limit, over the loss of a node, with workers that are cancelled, and stopped.

Each ends complete, with feature maps and adapter byte for byte those of an undisturbed run on no cluster. The cases run at the
same time on one cluster, each in a partition of its own; a test waits for its case. Prints JSON.

Catches: a job that Slurm ends without a checkpoint, that goes back to the queue for nothing or does not go back; work done
twice over a round's end; a worker of an array that does not come back, or whose lease is lost with it; an mpirun that sees one
node of two.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import unittest
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Callable

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parent))
import job  # noqa: E402
from cluster import Cluster, wait_until  # noqa: E402

CORES = sorted(os.sched_getaffinity(0))
FIRST, REST = {CORES[0]}, set(CORES[1:] or CORES)
# One core is the long run's alone, so that its rounds do not depend on what else happens.
PARTITIONS = {"limit": {"nodes": ["l1", "l2"], "cpus": 4, "cores": FIRST},
              "nodes": {"nodes": ["k1", "k2"], "cpus": 2, "cores": REST},
              "array": {"nodes": ["a1"], "cpus": 8, "cores": REST}}
TIMEOUT_S = 420  # other work may have the machine
LEASE_LIMIT_S = 10
SHORT_STEPS = 60
LONG_SECONDS = 50  # of the first core, in the long run's transfers: two rounds and more

CLUSTER = """\
[slurm]
partition = "{partition}"
time = "{minutes}"
signal_seconds = {signal}
bind = "127.0.0.1"
prologue = ["export OMP_NUM_THREADS=1"]
[workers]
nodes = {nodes}
tasks_per_node = {tasks}
cpus_per_task = 1
[coordinator]
cpus_per_task = 1
[finetune]
tasks_per_node = {ranks_per_node}
"""

cluster: Cluster
began = time.monotonic()
expected: dict[int, Future] = {}  # artifacts by number of steps
cases: dict[str, Future] = {}
printing = threading.Lock()


def say(case: str, **figures: object) -> None:
    with printing:
        print(json.dumps({"test": "slurm", "case": case, **figures}), flush=True)


class SlurmJob(job.Job):
    """A run of this many steps that is submitted."""

    def __init__(self, steps: int, partition: str, minutes: int = 10, signal: int = 30, nodes: int = 1, tasks: int = 1,
                 ranks_per_node: int = 2) -> None:
        super().__init__(changes(steps))
        self.cluster_file = self.root / "cluster.toml"
        self.cluster_file.write_text(CLUSTER.format(partition=partition, minutes=minutes, signal=signal, nodes=nodes,
                                                    tasks=tasks, ranks_per_node=ranks_per_node))
        self.run_directory = self.root / "it's a run"  # its name goes through three shells

    def submit(self, *more: str) -> dict[str, str]:
        """Job numbers by role."""
        ended = self.command("submit", "--slurm", "--run", self.run_directory, "--recipe", self.recipe, "--cluster",
                             self.cluster_file, "--json", *more, **cluster.environment)
        if ended.code != 0:
            raise AssertionError(f"hedgerow submit: {ended}")
        return {each["role"]: each["job"] for each in json.loads(ended.out)["jobs"]}

    def events(self, *types: str) -> list[dict]:
        ended = self.command("explain", "--all", "--json", "--run", self.run_directory)
        events = json.loads(ended.out)["events"] if ended.code == 0 else []
        return [event for event in events if not types or event["type"] in types]

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted((self.run_directory / "slurm").glob("*.log")))

    def workers(self) -> list[dict]:
        """Those that hold a transfer, by `hedgerow status`."""
        ended = self.command("status", "--json", "--run", self.run_directory)
        workers = json.loads(ended.out)["workers"] if ended.code == 0 else []
        return [worker for worker in workers if worker["task"].startswith("transfer")]

    def is_done(self) -> bool | None:
        ended = self.command("status", "--json", "--run", self.run_directory)
        return True if ended.code == 0 and json.loads(ended.out)["state"] == "done" else None

    def wait_until_over(self, submitted: dict[str, str]) -> None:
        """The run first: a job on its way back to the queue looks like one that has ended."""
        wait_until(self.is_done, TIMEOUT_S, "the end of the run")
        for number in submitted.values():
            cluster.wait_until_gone(number, TIMEOUT_S)

    def check_complete(self, steps: int) -> None:
        status = self.status()
        if status["state"] != "done":
            raise AssertionError(f"the run is {status['state']}: {self.log()[-4000:]}")
        if self.artifacts() != expected[steps].result(TIMEOUT_S):
            raise AssertionError("other bytes than an undisturbed run's")
        failed = self.events("failed")
        if failed:
            raise AssertionError(f"what Slurm did counts as failures: {failed}")
        done = [event["subject"] for event in self.events("done")]
        if len(done) != len(set(done)):
            raise AssertionError(f"done twice: {sorted(done)}")


def changes(steps: int) -> dict[str, object]:
    """The recipe of these tests, as job.Job takes it."""
    return {"transfer.max_steps": steps, "finetune.max_steps": 8, "finetune.threads": 1, "workers.lease_s": 8}


def undisturbed(steps: int) -> tuple[dict[str, str], float]:
    """Artifacts, and the seconds that one transfer step of one block took."""
    plain = job.Job(changes(steps))
    try:
        ended = plain.run(OMP_NUM_THREADS="1")
        if ended.code != 0:
            raise AssertionError(f"the undisturbed run failed: {ended}")
        transfers = [task["result"] for task in plain.status()["tasks"] if task["stage"] == "transfer"]
        return plain.artifacts(), sum(result["seconds"] for result in transfers) / sum(result["steps"] for result in transfers)
    finally:
        plain.close()


def over_the_limit(steps: int) -> None:
    """Two minutes at a time, of which Slurm gives less: it looks at limits twice a minute, and warns 90 s before."""
    run = SlurmJob(steps, "limit", minutes=2, signal=90, nodes=2, ranks_per_node=1)
    try:
        submitted = run.submit()
        if list(submitted) != ["run"]:
            raise AssertionError(f"one allocation is one job: {submitted}")
        ranks_on: set[str] = set()

        def is_gone() -> bool | None:
            for node in PARTITIONS["limit"]["nodes"]:
                if cluster.processes_on(node, "hedgerow-worker", "finetune"):
                    ranks_on.add(node)
            return cluster.is_gone(submitted["run"]) if run.is_done() else None

        begun = time.monotonic()
        wait_until(is_gone, TIMEOUT_S, "the end of the run over the limit")
        rounds = 1 + run.log().count("is over, checkpointed")
        say("wall-time limit", rounds=rounds, seconds=round(time.monotonic() - begun, 1), ranks_on=sorted(ranks_on))
        if rounds < 3:
            raise AssertionError(f"it was to need three rounds and took {rounds}: {run.log()[-4000:]}")
        if ranks_on != {"l1", "l2"}:
            raise AssertionError(f"the finetune stage ran on {sorted(ranks_on)} alone")
        run.check_complete(steps)
    finally:
        run.close()


def killed_node(steps: int) -> None:
    """The machine of an array's worker dies, and comes back."""
    run = SlurmJob(steps, "nodes")
    try:
        submitted = run.submit("--array", "2")

        def worker_of_the_node() -> dict | None:
            pids = cluster.processes_on("k2", "hedgerow-worker", "serve")
            return next((worker for worker in run.workers() if worker["pid"] in pids), None)

        victim = wait_until(worker_of_the_node, TIMEOUT_S, "a worker with a task on k2")
        cluster.kill_node("k2")
        begun = time.monotonic()

        def granted_again() -> dict | None:
            events = run.events("granted", "revoked")
            revoked = [event for event in events if event["type"] == "revoked" and event["subject"] == victim["task"]]
            return next((event for event in events if revoked and event["type"] == "granted" and
                         event["subject"] == victim["task"] and event["seq"] > revoked[0]["seq"]), None)

        wait_until(lambda: True if run.events("revoked") else None, 60, "the end of the dead worker's lease")
        revoked_after = time.monotonic() - begun
        cluster.take_for_dead("k2")
        cluster.start_node("k2")
        again = wait_until(granted_again, TIMEOUT_S, "another grant of the dead worker's task")
        if victim["uuid"] in again["text"]:
            raise AssertionError(f"granted to the dead: {again}")
        wait_until(lambda: cluster.processes_on("k2", "hedgerow-worker", "serve") or None, 60, "a worker on k2 again")
        say("killed node", seconds_to_revoked=round(revoked_after, 1), seconds_to_return=round(time.monotonic() - begun, 1))
        run.wait_until_over(submitted)
        run.check_complete(steps)
    finally:
        run.close()


def cancelled_task(steps: int) -> None:
    """Somebody cancels one task of the array: the other goes on, and nobody waits for a lease to run out."""
    run = SlurmJob(steps, "array")
    try:
        submitted = run.submit("--array", "2")
        wait_until(lambda: run.workers() if len(run.workers()) == 2 else None, TIMEOUT_S, "two workers with tasks")
        begun = time.monotonic()
        cluster.ask("scancel", f"{submitted['worker']}_1")
        released = wait_until(lambda: run.events("released") or None, 30, "the lease of the cancelled worker")
        seconds = time.monotonic() - begun
        say("cancelled array task", seconds_to_lease_returned=round(seconds, 2))
        if seconds > LEASE_LIMIT_S:
            raise AssertionError(f"the lease came back after {seconds:.1f} s")
        if not any(event["seq"] < released[0]["seq"] and event["subject"] == released[0]["subject"]
                   for event in run.events("checkpointed")):
            raise AssertionError("given back without a checkpoint")
        run.wait_until_over(submitted)
        if run.log().count("goes back to the queue"):
            raise AssertionError(f"a cancelled job went back to the queue: {run.log()[-3000:]}")
        run.check_complete(steps)
    finally:
        run.close()


def stopped(steps: int) -> None:
    """`hedgerow stop` ends a job for good: it does not go back to the queue."""
    run = SlurmJob(steps, "array", tasks=2)
    try:
        submitted = run.submit()
        wait_until(lambda: run.workers() or None, TIMEOUT_S, "a worker with a task")
        ended = run.command("stop", "--run", run.run_directory)
        if ended.code != 0:
            raise AssertionError(f"hedgerow stop: {ended}")
        cluster.wait_until_gone(submitted["run"], 60)
        if run.status()["state"] != "stopped" or "goes back to the queue" in run.log():
            raise AssertionError(f"stopped, but {run.status()['state']}: {run.log()[-3000:]}")
        say("stop")
    finally:
        run.close()


def setUpModule() -> None:
    global cluster
    job.binary_directory()
    job.require_text()
    cluster = Cluster(PARTITIONS)
    unittest.addModuleCleanup(finish)
    pool = ThreadPoolExecutor(max_workers=8)
    unittest.addModuleCleanup(pool.shutdown)
    artifacts, seconds_a_step = undisturbed(SHORT_STEPS)
    expected[SHORT_STEPS] = Future()
    expected[SHORT_STEPS].set_result(artifacts)
    # Two blocks, whose workers share the one core.
    long_steps = 4 * max(SHORT_STEPS // 4, int(LONG_SECONDS / (2 * seconds_a_step)) // 4)
    say("short run", seconds=round(time.monotonic() - began, 1), long_steps=long_steps)

    def case_of(case: Callable[[int], None], steps: int) -> None:
        try:
            case(steps)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{cluster.said()}") from error

    cases["limit"] = pool.submit(case_of, over_the_limit, long_steps)
    expected[long_steps] = pool.submit(lambda: undisturbed(long_steps)[0])
    cases["node"] = pool.submit(case_of, killed_node, long_steps)  # a short run would be over before its node is back
    for name, case in (("array", cancelled_task), ("stop", stopped)):
        cases[name] = pool.submit(case_of, case, SHORT_STEPS)


def finish() -> None:
    cluster.close()
    say("all", seconds=round(time.monotonic() - began, 1))


class OnACluster(unittest.TestCase):
    def test_a_run_goes_on_over_three_rounds_of_its_wall_time_limit(self) -> None:
        cases["limit"].result(TIMEOUT_S)

    def test_the_tasks_of_a_killed_node_go_elsewhere_and_its_worker_comes_back(self) -> None:
        cases["node"].result(TIMEOUT_S)

    def test_a_cancelled_task_of_an_array_gives_its_lease_back_and_the_others_go_on(self) -> None:
        cases["array"].result(TIMEOUT_S)

    def test_stop_ends_the_job_for_good(self) -> None:
        cases["stop"].result(TIMEOUT_S)


if __name__ == "__main__":
    unittest.main()
