"""What the kernel says of a process, for the tests that stop, kill and time other programs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStat:
    """The parts of /proc/PID/stat that somebody asks for."""

    state: str = "X"  # one letter, as ps shows it; X: there is no such process
    parent: int = 0
    processor_seconds: float = 0.0  # in its own code and in the kernel's, of all its threads


def stat_of(pid: int) -> ProcessStat:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ProcessStat()
    fields = text.rpartition(")")[2].split()  # the name before may hold spaces and brackets
    ticks = int(fields[11]) + int(fields[12])
    return ProcessStat(fields[0], int(fields[1]), ticks / os.sysconf("SC_CLK_TCK"))
