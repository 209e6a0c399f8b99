"""A run's journal as lists, read as storage/README.md "Journal" says: what lies behind a seal does not count."""

from __future__ import annotations

import collections
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Grant:
    task: str
    token: int
    worker: str
    incarnation: int
    resumed_from: int  # the step of the checkpoint that it found
    ended: str = ""  # "done", "failed", "released", "revoked"; empty: it holds the task


@dataclass
class Story:
    """What the records come to."""

    grants: dict[int, Grant] = field(default_factory=dict)  # by fencing token
    in_a_row: collections.Counter = field(default_factory=collections.Counter)  # failures, by task
    done: collections.Counter = field(default_factory=collections.Counter)  # by task
    shards: collections.Counter = field(default_factory=collections.Counter)  # by (boundary, shard)
    lost: list[str] = field(default_factory=list)
    quarantined: int = 0
    checkpoints: dict[str, int] = field(default_factory=dict)  # newest step, by task

    def holder(self, worker: str, incarnation: int) -> Grant | None:
        """What this incarnation held last."""
        held = [grant for grant in self.grants.values() if (grant.worker, grant.incarnation) == (worker, incarnation)]
        return held[-1] if held else None

    def successor(self, grant: Grant) -> Grant | None:
        later = [other for other in self.grants.values() if other.task == grant.task and other.token > grant.token]
        return later[0] if later else None

    def apply(self, event: dict) -> None:
        kind = event["type"]
        grant = self.grants.get(event.get("token", 0))
        if kind == "granted":
            self.grants[event["token"]] = Grant(event["task"], event["token"], event["worker"], event["incarnation"],
                                                self.checkpoints.get(event["task"], 0))
        elif kind == "term_started":
            for held in self.grants.values():
                if held.task == "assemble" and not held.ended:
                    held.ended = "revoked"
        elif kind == "shard_committed":
            self.shards[grant.task.split("/")[1], event["shard"]] += 1
            self.in_a_row[grant.task] = 0
        elif kind == "checkpointed":
            self.checkpoints[grant.task] = event["step"]
            self.in_a_row[grant.task] = 0
        elif kind in ("done", "failed", "released", "revoked"):
            grant.ended = kind
            self.in_a_row[grant.task] = self.in_a_row[grant.task] + 1 if kind == "failed" else self.in_a_row[grant.task]
            if kind == "done":
                self.done[grant.task] += 1
                self.in_a_row[grant.task] = 0
        elif kind == "retried":
            self.in_a_row[event["task"]] = 0
        elif kind == "quarantined":
            self.quarantined += 1
        elif kind == "lost":
            self.lost.append(event["name"])


def read(run: Path) -> Story:
    """Of a run of which a coordinator may be writing: its last line may be half there."""
    records: dict[int, list[tuple[int, dict]]] = {}  # by term: where the line ends, event
    sealed: dict[int, int] = {}
    for segment in sorted((run / "journal").glob("*.jsonl")):
        term, end = int(segment.stem), 0
        for line in segment.read_bytes().split(b"\n")[:-1]:
            end += len(line) + 1
            try:
                event = json.loads(line)["event"]
            except ValueError:
                continue  # cut off by a kill
            records.setdefault(term, []).append((end, event))
            if event["type"] == "term_started":
                sealed |= {seal["term"]: seal["bytes"] for seal in event["seals"]}
    story = Story()
    for term in sorted(records):
        for end, event in records[term]:
            if end <= sealed.get(term, end):
                story.apply(event)
    return story
