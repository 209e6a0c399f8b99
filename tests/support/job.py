"""A real job for the end-to-end and fault tests: the real binaries on SmolLM2 cut to its first layers, real weights.

One `Job` is one run directory. Nothing here knows how a run works inside: it types commands, reads `--json`, looks at
files, and kills processes at the places that storage/faults/fault_point.hpp names.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterator, TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
SUPPORT = Path(__file__).resolve().parent
HUGGINGFACE = REPOSITORY / "deploy" / "huggingface"
CACHE = Path(os.environ.get("HEDGEROW_CACHE", Path.home() / ".cache" / "hedgerow"))
TEXT = CACHE / "data" / "jargon.txt.gz"
EXCERPT_CHARACTERS = 1 << 16

RECIPE = """\
seed = 7
[model]
path = "%(model)s"
[data.transfer]
seq_len = 128
validation_sequences = 4
max_sequences = 36
split = "sequences"
sources = [{ path = "%(text)s", format = "text" }]
[data.finetune]
seq_len = 64
validation_sequences = 4
max_sequences = 20
split = "sequences"
sources = [{ path = "%(text)s", format = "text" }]
[data.evaluate]
seq_len = 64
validation_sequences = 2    # the head's 49,152 rows are most of the work
split = "sequences"
sources = [{ path = "%(text)s", format = "text" }]
[attention]
window = "terraced"
window_size = 16    # of 128 and 64 tokens: with 64 a terraced window would leave the feature maps nothing to do
bias = false    # with biases, layers that stay behind their control in these few steps would be kept untrained, whatever they learned
[plan]
layers_per_block = 2
sequences_per_forward = 4
shard_mib = 1
[transfer]
max_steps = 8
sequences_per_step = 4
validate_every = 4
validation_sequences = 4
checkpoint_every = 2
[finetune]
max_steps = 4
sequences_per_step = 4
checkpoint_every = 1
validate_every = 0
ranks = 2
[workers]
local = 2
threads = 1
orphan_timeout_s = 20
"""
# On top of RECIPE, where what the models say is judged.
MORE_EVALUATION = {"data.evaluate.seq_len": 128, "data.evaluate.validation_sequences": 4}


def binary_directory() -> Path:
    """Where hedgerow and hedgerow-worker were built; ctest passes it."""
    directory = Path(os.environ.get("HEDGEROW_BIN", REPOSITORY / "build" / "cpu" / "bin"))
    if not (directory / "hedgerow").exists():
        raise unittest.SkipTest(f"{directory}/hedgerow is not built")
    return directory


def made_once() -> Path:
    """The build's folder of what a test run makes once, which tests/run empties when it begins."""
    return binary_directory().parent / "made_once"


def cut_model(layers: int) -> Path:
    """SmolLM2-135M-Instruct's first layers as a model directory, made once per machine in the cache."""
    directory = CACHE / "models" / f"SmolLM2-135M-Instruct-{layers}-layers"
    if not (directory / "config.json").exists():
        made = subprocess.run([sys.executable, HUGGINGFACE / "prepare.py", "--out", directory, "--layers", str(layers)],
                              capture_output=True, text=True)
        if made.returncode == 5:
            raise unittest.SkipTest(f"the model cannot be prepared: {made.stderr.strip()}")
        if made.returncode != 0:
            raise AssertionError(f"prepare.py exited {made.returncode}: {made.stderr}")
    return directory


def require_text() -> Path:
    if not TEXT.exists():
        raise unittest.SkipTest(f"{TEXT} is missing (the Jargon File; deploy/setup puts it there)")
    return TEXT


def excerpt(characters: int = EXCERPT_CHARACTERS) -> Path:
    """The text's beginning, made once per machine: RECIPE splits by sequences, so all of its text is tokenized, three times."""
    beginning = TEXT.with_name(f"jargon-first-{characters}.txt.gz")
    if not beginning.exists():
        with gzip.open(require_text(), "rt", encoding="utf-8") as text:
            data = text.read(characters).encode()
        made = beginning.with_name(f"{beginning.name}.{os.getpid()}")  # another test may be at it too
        made.write_bytes(gzip.compress(data, mtime=0))
        made.rename(beginning)
    return beginning


def recipe_text(changes: dict[str, object] | None = None, text: Path | None = None) -> str:
    """RECIPE with these values by path, {"transfer.max_steps": 30}; None drops the key or the section of that name."""
    sections: dict[str, dict[str, str]] = {}
    section = sections[""] = {}
    for line in (RECIPE % {"model": cut_model(4), "text": text or excerpt()}).splitlines():
        if line.startswith("["):
            section = sections[line.strip("[]")] = {}
        else:
            key, _, value = line.partition(" = ")
            section[key] = value
    for path, changed in (changes or {}).items():
        name, _, key = path.rpartition(".")
        if changed is not None:
            sections.setdefault(name, {})[key] = json.dumps(changed)
        elif path in sections:
            del sections[path]
        else:
            del sections[name][key]
    return "".join((f"[{name}]\n" if name else "") + "".join(f"{key} = {value}\n" for key, value in keys.items())
                   for name, keys in sections.items())


@dataclass
class Ended:
    """What a command came to."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.out[-3000:]}\n--- stderr\n{self.err[-3000:]}"


class Job:
    """A run directory under a temporary directory that is removed with the object; its recipe is recipe_text(changes, text)."""

    # Commands get tokens that were made before of the same text (remembered_tokens.py). False where a test is about making them.
    remembers_tokens = True

    def __init__(self, changes: dict[str, object] | None = None, text: Path | None = None) -> None:
        self.bin = binary_directory()
        self.model = cut_model(4)
        self._temporary = tempfile.TemporaryDirectory(prefix="hedgerow-job-")
        self.root = Path(self._temporary.name)
        self.run_directory = self.root / "run"
        self.recipe = self.root / "recipe.toml"
        self.recipe.write_text(recipe_text(changes, text))

    @classmethod
    def finished(cls) -> Job:
        """RECIPE's run, done: a copy of the one that the first test to ask for it makes."""
        made = cls()
        subprocess.run(["cp", "-a", "--reflink=auto", finished_run(), made.run_directory], check=True)
        return made

    def close(self) -> None:
        self.kill_leftovers()
        self._temporary.cleanup()

    def command(self, *words: str | Path, timeout: float = 300, fault: str = "", **environment: str) -> Ended:
        """`hedgerow <words>`; `fault` is a place as storage/faults/fault_point.hpp takes it, hit by one process only."""
        env = {**self.environment(), **environment}
        if fault:
            env |= {"HEDGEROW_FAULT": fault, "HEDGEROW_FAULT_ONCE": str(self.root / f"killed.{fault}")}
        done = subprocess.run([self.bin / "hedgerow", *map(str, words)], capture_output=True, text=True, timeout=timeout,
                              env=env, stdin=subprocess.DEVNULL)
        return Ended(done.returncode, done.stdout, done.stderr)

    def environment(self) -> dict[str, str]:
        """Of every command."""
        found = {**os.environ, "NO_COLOR": "1"}
        if self.remembers_tokens and "HEDGEROW_PYTHON" not in found:
            found |= {"HEDGEROW_PYTHON": str(SUPPORT / "budget" / "remembering_python"), "HEDGEROW_TEST_PYTHON": sys.executable,
                      "HEDGEROW_TEST_TOKENS": str(made_once() / "tokens")}
        return found

    def run(self, **kwargs: object) -> Ended:
        return self.command("run", "--run", self.run_directory, "--recipe", self.recipe, **kwargs)

    def fault_was_hit(self, fault: str) -> bool:
        return (self.root / f"killed.{fault}").exists()

    def status(self) -> dict:
        ended = self.command("status", "--run", self.run_directory, "--json")
        if ended.code != 0:
            raise AssertionError(f"hedgerow status: {ended}")
        return json.loads(ended.out)

    def processes(self) -> list[int]:
        """Living processes of this job: every command line of ours names the run directory, which lies under its root."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if any(os.fsencode(self.root) in word for word in line):
                    found.append(int(entry.name))
        return found

    def named(self, program: str, *words: str) -> list[int]:
        """Living processes of this job whose command line begins with these words, the program by its base name."""
        found = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                line = [os.fsdecode(word) for word in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")]
                if [Path(line[0]).name, *line[1:]][:1 + len(words)] == [program, *words]:
                    found.append(pid)
        return found

    def kill_leftovers(self) -> None:
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    @contextlib.contextmanager
    def started(self, *words: str | Path) -> Iterator[subprocess.Popen]:
        """`hedgerow <words>` in the background; killed with the workers that it started if the test fails."""
        process = subprocess.Popen([self.bin / "hedgerow", *map(str, words)], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
                                   env=self.environment())
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            self.kill_leftovers()

    def wait_for_coordinator(self, run: Path, process: subprocess.Popen) -> dict:
        """coordinator.json, once this process wrote it."""
        def written() -> dict | None:
            try:
                held = json.loads((run / "coordinator.json").read_text())
            except (OSError, ValueError):
                return None
            return held if held["process"]["pid"] == process.pid else None

        return wait_until(written, process)

    def artifacts(self) -> dict[str, str]:
        return artifacts_of(self.run_directory)


def finished_run() -> Path:
    """RECIPE's run, done, to be read and never written: made once for these programs, in the build's folder. tests/run begins without."""
    recipe, programs = recipe_text(), binary_directory()
    made_by = [programs / "hedgerow", programs / "hedgerow-worker", *sorted(HUGGINGFACE.rglob("*.py"))]
    key = [recipe, *(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in made_by)]
    directory = made_once() / "runs" / hashlib.sha256("\n".join(key).encode()).hexdigest()[:16]
    directory.parent.mkdir(parents=True, exist_ok=True)
    with open(directory.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes second waits for the first
        if not directory.exists():
            one = Job()
            try:
                ended = one.run()
                if ended.code != 0:
                    raise AssertionError(f"hedgerow run: {ended}")
                copy = directory.with_suffix(".part")
                shutil.rmtree(copy, ignore_errors=True)  # of one that was killed
                shutil.copytree(one.run_directory, copy, symlinks=True)
                copy.rename(directory)
            finally:
                one.close()
    return directory


def wait_until(condition: Callable[[], T | None], process: subprocess.Popen | None, timeout_s: float = 60) -> T:
    """What the condition gives once it gives something, looked at 20 times a second; a process that ends meanwhile fails it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (found := condition()) is not None:
            return found
        if process and process.poll() is not None:
            raise AssertionError(f"{process.args} ended with {process.returncode}: {process.communicate()}")
        time.sleep(0.05)
    raise AssertionError(f"{process.args if process else 'wait_until'}: nothing within {timeout_s} s")


def artifacts_of(run: Path) -> dict[str, str]:
    """SHA-256 of what a run is for: student and adapter, by kind (names carry fencing tokens)."""
    hashes = {}
    for kind, pattern in {"feature maps": "student/*/feature_maps.safetensors",
                          "student": "student/*/hedgerow.json",
                          "adapter": "adapter/*/adapter_model.safetensors",
                          "adapter's settings": "adapter/*/adapter_config.json"}.items():
        newest = sorted(run.glob(pattern), key=lambda path: int(path.parent.name.lstrip("t")))
        if not newest:
            raise AssertionError(f"no {kind} in {run}")
        hashes[kind] = digest(newest[-1])
    return hashes


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
