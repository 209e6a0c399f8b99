"""What the rows share: the row itself, the machine, programs that answer "go", and the files a bench needs."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
HUGGINGFACE = REPOSITORY / "deploy" / "huggingface"
sys.path.append(str(REPOSITORY / "tests" / "huggingface"))
from tokens_section import write_section  # noqa: E402

OPPONENTS = REPOSITORY / "tests" / "bench" / "opponents"
DATA = REPOSITORY.parent / "shared" / "data"  # larger texts, where the checkout has them beside it


class Skip(Exception):
    """A row cannot be measured here; the message is its skipped_reason."""


def machine() -> str:
    """Processor, cores and memory, as one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{model}, {os.cpu_count()} cores, {pages / 2**30:.0f} GiB"


@dataclass
class Row:
    """One number against its goal. `ratio` is value / opponent_value; the goal is on the ratio if there is an opponent."""

    name: str
    value: float | None
    unit: str
    goal: str  # "<= 0.5", ">= 1.2", "== 0"
    opponent: str | None = None
    opponent_value: float | None = None
    ratio: float | None = None
    skipped_reason: str | None = None
    machine: str = field(default_factory=machine)

    @property
    def passed(self) -> bool | None:
        """None: skipped."""
        if self.skipped_reason is not None:
            return None
        if self.value is None:  # its measurement broke off
            return False
        measured = self.ratio if self.opponent_value is not None else self.value
        sign, bound = self.goal.split()
        return {"<=": measured <= float(bound), ">=": measured >= float(bound), "==": measured == float(bound)}[sign]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "pass": self.passed}


def against(name: str, value: float, unit: str, goal: str, opponent: str, opponent_value: float) -> Row:
    return Row(name, value, unit, goal, opponent, opponent_value, value / opponent_value)


@dataclass
class Context:
    """Where things are."""

    binaries: Path
    work: Path
    cache: Path
    repeats: int
    seeds: tuple[int, ...]
    is_quick: bool = False  # fewer shapes

    def program(self, name: str) -> Path:
        path = self.binaries / name
        if not path.exists():
            raise Skip(f"{path} is not built")
        return path

    def model(self, layers: int = 0) -> Path:
        """SmolLM2-135M-Instruct, or its first layers; prepared if it is not there yet."""
        name = "SmolLM2-135M-Instruct" + (f"-{layers}-layers" if layers else "")
        path = self.cache / "models" / name
        done = subprocess.run([sys.executable, HUGGINGFACE / "prepare.py", "--out", path,
                               *(("--layers", str(layers)) if layers else ())], capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"the model cannot be prepared: {done.stderr.strip()}")
        return path

    def data(self, name: str) -> Path:
        path = DATA / name
        if not path.exists():
            raise Skip(f"{path} is not there")
        return path

    def tokens(self, model: Path) -> Path:
        """A tokens file of real text: roleplay_alpaca where it is, else the Jargon File."""
        path = self.work / "tokens.h5"
        if path.exists():
            return path
        source = DATA / "roleplay_alpaca.json"
        entry = {"path": source, "format": "records"} if source.exists() else \
            {"path": self.cache / "data" / "jargon.txt.gz", "format": "text"}
        section = write_section(self.work / "tokens.json", [entry], seq_len=512, validation_sequences=8, max_sequences=64)
        done = subprocess.run([sys.executable, HUGGINGFACE / "make_tokens.py", "--section", section, "--model", model, "--out",
                               path], capture_output=True, text=True)
        if done.returncode:
            raise Skip(f"no tokens: {done.stderr.strip()}")
        return path


def require_packages(*names: str) -> None:
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Skip(f"the Python package {name} is not installed (deploy/setup --tests)")
    if "torch" in names:
        probe = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True)
        if probe.returncode:
            raise Skip("Python cannot import torch here (deploy/setup --full-torch)")


class Contestant:
    """A program that answers "go" lines (opponents/protocol.py); its own threads fixed, so that both sides have as many."""

    def __init__(self, *command: str | Path, **variables: str):
        environment = {**os.environ, "OMP_NUM_THREADS": str(os.cpu_count()), "TOKENIZERS_PARALLELISM": "false", **variables}
        self._process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE, text=True, env=environment)
        self.facts = self._reply()

    def _reply(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise Skip(f"{self._process.args[0]} ended: {self._process.stderr.read().strip()[-300:]}")
        reply = json.loads(line)
        if "error" in reply:
            raise Skip(f"{self._process.args[0]}: {reply['error']}")
        return reply

    def ask(self, request: str) -> dict[str, Any]:
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return self._reply()

    def go(self) -> dict[str, Any]:
        return self.ask("go")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()
        self._process.stderr.close()

    def __enter__(self) -> Contestant:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def duel(ours: Contestant, theirs: Contestant, repeats: int, warm_ups: int = 0) -> tuple[float, float]:
    """Median seconds of both, repeats alternating, so that a slow minute of the machine hits both. `warm_ups` repeats before
    each are not counted: threads of the other may still spin."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for side, contestant in enumerate((ours, theirs)):
            for _ in range(warm_ups):
                contestant.go()
            seconds[side].append(contestant.go()["seconds"])
    return statistics.median(seconds[0]), statistics.median(seconds[1])
