"""The beacons of a run's processes (storage/faults/fault_beacon.hpp): where each is, also when it is dead, and where it is to die."""

from __future__ import annotations

import mmap
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from processes import stat_of  # noqa: E402

MAGIC = b"HGBEACN1"
HEAD = struct.Struct("<8sIIQq48sII")  # magic, pid, changes, visits, step, place, armed, number of wishes
WISH = struct.Struct("<48sII")  # place, visits to skip, microseconds until the kill
ARMED_AT = HEAD.size - 8
ASLEEP, ARMED, FIRED = 0, 1, 2


@dataclass(frozen=True)
class Wish:
    place: str
    skip: int = 0
    delay_us: int = 0


@dataclass(frozen=True)
class Shown:
    """What a beacon says."""

    place: str
    step: int
    armed: int
    whole: bool  # False: its process died while it wrote


class Beacon:
    """One process that visits fault points, named by its command line; made when its file is first seen."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pid = int(path.stem)
        with path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        if self._page[:8] != MAGIC:
            raise AssertionError(f"{path}: not a beacon")
        self.words = _words(f"/proc/{self.pid}/cmdline")
        environment = dict(word.partition("=")[::2] for word in _words(f"/proc/{self.pid}/environ"))
        self.rank = int(environment.get("OMPI_COMM_WORLD_RANK", 0))
        verb = self.words[1] if len(self.words) > 1 else ""
        self.role = {"run": "coordinator", "serve": "worker", "finetune": "mpi rank"}.get(verb, "unknown")
        self.parent = stat_of(self.pid).parent
        self.killed_from_outside = False

    def option(self, name: str) -> str:
        return self.words[self.words.index(name) + 1]

    def shown(self) -> Shown:
        _, _, changes, _, step, place, armed, _ = HEAD.unpack_from(self._page)
        return Shown(place.rstrip(b"\0").decode(), step, armed, changes % 2 == 0)

    def arm(self, wishes: list[Wish]) -> None:
        self.disarm()
        for i, wish in enumerate(wishes):
            WISH.pack_into(self._page, HEAD.size + i * WISH.size, wish.place.encode(), wish.skip, wish.delay_us)
        struct.pack_into("<I", self._page, ARMED_AT + 4, len(wishes))
        struct.pack_into("<I", self._page, ARMED_AT, ARMED)

    def disarm(self) -> None:
        if self.shown().armed != FIRED:
            struct.pack_into("<I", self._page, ARMED_AT, ASLEEP)

    def lives(self) -> bool:
        return stat_of(self.pid).state not in "ZX"

    def forget(self) -> None:
        self._page.close()
        self.path.unlink(missing_ok=True)


def _words(path: str) -> list[str]:
    try:
        return [os.fsdecode(word) for word in Path(path).read_bytes().split(b"\0")]
    except OSError:
        return []
