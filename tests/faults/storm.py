"""Kill storms: a real run of many processes whose workers, MPI ranks, mpirun and coordinator are killed again and again.

A kill is a SIGKILL and counts for the state in which its victim was, as its beacon says after its death; one that hits an
idle or starting process does not count. Two ways lead to it: this process sends it to whoever is in a state that has had
few, or a victim is asked to let the kernel kill it some microseconds after it came by a place (a rename that awaits its
record is over too soon for a look from outside). No task is killed a third time in a row without progress: that would
quarantine it, which is another test's matter.
"""

from __future__ import annotations

import collections
import json
import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import beacons
import job
import journal_text
from beacons import Beacon, Wish

# What a place is about. Places that are not here are idle, loading or starting.
STATES = {
    "worker.capture.shard": "shard write",
    "coordinator.shard.renamed": "rename to journal",
    "coordinator.output.renamed": "rename to journal",
    "coordinator.student.renamed": "rename to journal",
    "worker.transfer.training": "transfer step",
    "worker.transfer.step": "transfer step",
    "worker.transfer.validating": "validation",
    "worker.finetune.validating": "validation",
    "worker.transfer.checkpoint": "checkpoint",
    "worker.checkpoint.written": "checkpoint",
    "worker.finetune.checkpoint": "checkpoint",
    "worker.finetune.checkpoint.written": "checkpoint",
    "coordinator.checkpoint.transfer": "checkpoint",
    "coordinator.checkpoint.finetune": "checkpoint",
    "coordinator.assemble": "assemble",
    "coordinator.student.written": "assemble",
    "worker.finetune.training": "finetune",
    "worker.finetune.stepped": "finetune",
    "coordinator.finetune.launched": "finetune",
    "worker.logits.file": "shard write",
    "worker.capture.shard_written": "commit awaited",
    "worker.logits.written": "commit awaited",
    "worker.artifact.written": "commit awaited",
    "worker.finetune.adapter.written": "commit awaited",
    "storage.journal.written": "journal write",
}
# Of the kills of a run, about how many should hit a state; those that nobody asks for come by themselves.
SHARES = {"shard write": 0.16, "rename to journal": 0.14, "transfer step": 0.22, "validation": 0.12, "checkpoint": 0.14,
          "assemble": 0.08, "finetune": 0.1, "commit awaited": 0.02, "journal write": 0.02}
REQUIRED = [state for state in SHARES if state not in ("commit awaited", "journal write")]
# By role: (place, most visits to skip, microseconds that it lasts at most).
PLACES = {
    "worker": [("worker.capture.shard", 2, 40_000), ("worker.capture.shard_written", 1, 1_000),
               ("worker.transfer.training", 9, 30_000), ("worker.transfer.validating", 2, 20_000),
               ("worker.transfer.checkpoint", 2, 3_000), ("worker.checkpoint.written", 2, 500),
               ("worker.logits.file", 0, 100_000), ("worker.logits.written", 0, 500),
               ("worker.artifact.written", 0, 1_000)],
    "mpi rank": [("worker.finetune.training", 3, 300_000), ("worker.finetune.stepped", 2, 0),
                 ("worker.finetune.validating", 1, 200_000), ("worker.finetune.checkpoint", 1, 20_000),
                 ("worker.finetune.checkpoint.written", 1, 500), ("worker.finetune.adapter.written", 0, 1_000)],
    "coordinator": [("coordinator.shard.renamed", 3, 300), ("coordinator.output.renamed", 1, 300),
                    ("coordinator.student.renamed", 0, 0), ("coordinator.assemble", 0, 40_000),
                    ("coordinator.student.written", 0, 0), ("coordinator.checkpoint.transfer", 4, 0),
                    ("coordinator.checkpoint.finetune", 2, 0), ("coordinator.finetune.launched", 0, 0),
                    ("storage.journal.written", 6, 300)],
}
FEW = 8  # kills of a run: with so few to come, each is to hit its place
MAX_IN_A_ROW = 2  # a third failure in a row would quarantine the task
TICK_S = 0.01
REWISH_S = 1.0
TIMEOUT_S = 240  # for one run; an undisturbed one takes under 10 s


@dataclass
class Kill:
    run: int
    role: str
    place: str
    state: str
    step: int
    token: int  # that it held; 0: none


@dataclass
class Report:
    kills: list[Kill] = field(default_factory=list)
    uncounted: int = 0
    runs: int = 0
    retries_after_quarantine: int = 0
    lost: list[str] = field(default_factory=list)
    committed_twice: list[str] = field(default_factory=list)
    byte_equal: bool = True
    lost_steps: list[tuple[int, int, Kill]] = field(default_factory=list)  # steps, interval

    def unseen_places(self) -> set[str]:
        return {place for places in PLACES.values() for place, _, _ in places} - {kill.place for kill in self.kills}

    def by(self, what: str) -> dict[str, int]:
        return dict(collections.Counter(getattr(kill, what) for kill in self.kills).most_common())


class StormyRun:
    """One run directory, from its first command to its end."""

    def __init__(self, template: Path, root: Path, wanted: dict[str, int], random_: random.Random, report: Report) -> None:
        self.number, self.wanted, self.random, self.report = report.runs, wanted, random_, report
        self.wants_few = sum(max(0, count) for count in wanted.values()) < FEW
        number = self.number
        self.run = root / f"run{number}"
        self.beacon_directory = root / f"beacons{number}"
        self.beacon_directory.mkdir()
        shutil.copytree(template, self.run)
        self.log = root / f"run{number}.log"
        self.counted: collections.Counter = collections.Counter()
        self.beacons: dict[int, Beacon] = {}
        self.wished_at: dict[int, float] = {}
        self.killed_launches: set[str] = set()
        self.process: subprocess.Popen | None = None
        self.story = journal_text.Story()
        self.journal_size = -1

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen([job.binary_directory() / "hedgerow", "run", "--run", self.run], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=log,
                                            env={**os.environ, "NO_COLOR": "1", "HEDGEROW_STORM": str(self.beacon_directory)})

    def weather(self) -> None:
        """Until the run is done. Raises AssertionError if it ends otherwise."""
        deadline = time.monotonic() + TIMEOUT_S
        self.start()
        while True:
            code = self.process.poll()
            self.look()
            if code is not None:
                if code == 0:
                    break
                if code == 3:
                    self.report.retries_after_quarantine += 1
                elif code != -signal.SIGKILL:
                    raise AssertionError(f"hedgerow run ended with {code}: {self.tail()}")
                self.start()
            if time.monotonic() > deadline:
                raise AssertionError(f"the run is not done after {TIMEOUT_S} s: {self.tail()}")
            time.sleep(TICK_S)
        self.look()

    def tail(self) -> str:
        return self.log.read_text()[-3000:]

    # -- one look at all processes -----------------------------------------------------------------------------------

    def look(self) -> None:
        self.read_journal()
        for path in self.beacon_directory.glob("*.beacon"):
            if int(path.stem) not in self.beacons:
                self.beacons[int(path.stem)] = Beacon(path)
        now = time.monotonic()
        for pid, beacon in list(self.beacons.items()):
            if not beacon.lives():
                self.bury(beacon)
            elif self.is_spared(beacon):
                beacon.disarm()
                self.wished_at.pop(pid, None)
            elif beacon.shown().armed != beacons.FIRED and now - self.wished_at.get(pid, 0) > REWISH_S:
                beacon.arm(self.draw_wishes(beacon))
                self.wished_at[pid] = now
        self.strike()

    def read_journal(self) -> None:
        size = sum(path.stat().st_size for path in (self.run / "journal").glob("*.jsonl"))
        if size != self.journal_size:
            self.story = journal_text.read(self.run)
            self.journal_size = size

    def grant_of(self, beacon: Beacon) -> journal_text.Grant | None:
        if beacon.role == "worker":
            return self.story.holder(beacon.option("--worker"), int(beacon.option("--incarnation")))
        if beacon.role == "mpi rank":
            return self.story.grants.get(int(beacon.option("--token")))
        return None

    def is_spared(self, beacon: Beacon) -> bool:
        if beacon.role == "unknown":
            return True
        grant = self.grant_of(beacon)
        return grant is not None and self.story.in_a_row[grant.task] >= MAX_IN_A_ROW

    def need(self, state: str) -> float:
        """Of the kills that this run is to have in a state, the share that is left."""
        wanted = self.wanted.get(state, 0)
        return max(0.0, 1 - self.counted[state] / wanted) if wanted > 0 else 0.0

    def draw_wishes(self, beacon: Beacon) -> list[Wish]:
        """Two places: of those that no storm has hit yet, or by what the states lack."""
        places = [entry for entry in PLACES[beacon.role] if beacon.rank == 0 or STATES[entry[0]] in ("finetune", "validation")]
        unseen = self.report.unseen_places()
        missed = [entry for entry in places if entry[0] in unseen]
        lacking = [entry for entry in places if self.need(STATES[entry[0]]) > 0]
        if missed and (not lacking or self.random.random() < 0.6):
            drawn = {self.random.choice(missed) for _ in range(2)}
        elif lacking:
            weights = [self.need(STATES[place]) for place, _, _ in lacking]
            drawn = {self.random.choices(lacking, weights)[0] for _ in range(2)}
        else:
            return []
        wishes = []
        for place, skip, longest in sorted(drawn):
            if place in unseen:  # the first to come by: the wish is drawn anew each second, and some come once a run
                wishes.append(Wish(place, 0, 0))
                continue
            at_once = self.wants_few or self.random.random() < 0.3
            wishes.append(Wish(place, self.random.randint(0, skip), 0 if at_once else self.random.randint(0, longest)))
        return wishes

    def strike(self) -> None:
        """A kill from outside, of somebody who is seen at work."""
        if self.random.random() > 0.05:
            return
        seen = []
        for beacon in self.beacons.values():
            state = STATES.get(beacon.shown().place)
            if state and self.need(state) > 0 and not self.is_spared(beacon) and not beacon.killed_from_outside:
                seen.append((beacon, self.need(state)))
        if not seen:
            return
        beacon = self.random.choices([one for one, _ in seen], [need for _, need in seen])[0]
        victim = beacon.parent if beacon.role == "mpi rank" and self.random.random() < 0.5 else beacon.pid
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return
        if victim == beacon.pid:
            beacon.killed_from_outside = True
        else:
            self.count(beacon, "mpirun")

    # -- the dead ----------------------------------------------------------------------------------------------------

    def bury(self, beacon: Beacon) -> None:
        shown = beacon.shown()
        if beacon.killed_from_outside or shown.armed == beacons.FIRED:
            self.count(beacon, beacon.role)
        del self.beacons[beacon.pid]
        beacon.forget()

    def count(self, beacon: Beacon, role: str) -> None:
        shown = beacon.shown()
        state = STATES.get(shown.place) if shown.whole else None
        token = beacon.option("--token") if beacon.role == "mpi rank" else ""
        if token and token in self.killed_launches:
            return  # its launch was killed already; this one only falls with it
        if state is None:
            self.report.uncounted += 1
            return
        if token:
            self.killed_launches.add(token)
        self.counted[state] += 1
        grant = self.grant_of(beacon)  # now: the next coordinator may count the incarnations of a worker anew
        self.report.kills.append(Kill(self.number, role, shown.place, state, shown.step, grant.token if grant else 0))

    # -- the judgement -----------------------------------------------------------------------------------------------

    def judge(self, expected: dict[str, str], intervals: dict[str, int]) -> None:
        status = json.loads(self.hedgerow("status", "--json"))
        self.report.lost += [f"run {self.number}: {task['id']} is {task['state']}" for task in status["tasks"]
                             if task["state"] not in ("done", "dropped")]
        story = journal_text.read(self.run)
        self.report.lost += [f"run {self.number}: lost {name}" for name in story.lost]
        for what, commits in [*story.done.items(), *story.shards.items()]:
            if commits != 1:
                self.report.committed_twice.append(f"run {self.number}: {what} {commits} times")
        self.hedgerow("check")
        self.report.byte_equal &= job.artifacts_of(self.run) == expected
        for kill in self.report.kills:
            if kill.run == self.number and kill.step >= 0:
                self.measure_lost_steps(kill, story, intervals)

    def measure_lost_steps(self, kill: Kill, story: journal_text.Story, intervals: dict[str, int]) -> None:
        grant = story.grants.get(kill.token)
        successor = story.successor(grant) if grant and grant.ended != "done" else None
        stage = grant.task.split("/")[0] if grant else ""
        if successor and stage in intervals:
            self.report.lost_steps.append((kill.step - successor.resumed_from, intervals[stage], kill))

    def hedgerow(self, *words: str) -> str:
        done = subprocess.run([job.binary_directory() / "hedgerow", *words, "--run", self.run], capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise AssertionError(f"hedgerow {words[0]}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return done.stdout
