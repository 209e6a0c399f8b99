"""A real run whose coordinator or first worker is killed at, or failed by, its Nth system call; the same command again; equal bytes.

strace is the injector, as in storage_crash_test, which does every N on a job of storage's alone; here N is drawn, from fixed
seeds. Only the main thread is disturbed: it is the one that writes. Each fault is tried once, twice
by tests/run --all, ten times by --release.

Catches: a write, fsync or rename of the real binaries whose failure is ignored, answered by a crash or by more than one
sentence, or whose half-done work a second run trips over.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import shutil
import subprocess
import sys
import unittest
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "support" / "budget"))
import job  # noqa: E402
import sizes  # noqa: E402

TABLE = {1, 2, 3, 4, 5}  # exit codes of `hedgerow --help`; 0 apart
KILL = "signal=KILL"
# (victim, call as strace -e trace= names it, effect)
FAULTS = [("coordinator", "write", KILL), ("coordinator", "fsync", KILL), ("coordinator", "rename", KILL),
          ("coordinator", "openat", KILL), ("serve", "write", KILL), ("serve", "fsync", KILL), ("serve", "openat", KILL),
          ("serve", "pwrite64", KILL),
          ("coordinator", "write", "error=ENOSPC"), ("coordinator", "fsync", "error=EIO"),
          ("coordinator", "rename", "error=EDQUOT"), ("coordinator", "openat", "error=EIO"),
          ("serve", "write", "error=EDQUOT"), ("serve", "fsync", "error=EIO"), ("serve", "pwrite64", "error=ENOSPC")]
CALLS = "write,fsync,rename,openat,pwrite64"
SEEDS = sizes.of_run(range(1, 2), range(1, 3), range(1, 11))

# The first process of that verb is traced; whoever comes after it runs free.
WRAPPER = """\
#!/bin/sh
if [ "$1" = serve ] && mkdir "$TRACED_ONCE" 2>/dev/null; then
  exec strace -D -qq $TRACED_OPTIONS {worker} "$@"
fi
exec {worker} "$@"
"""
RECIPE = {  # on top of job.RECIPE: no more than a capture, a transfer, a student and evaluations
    "data.transfer.max_sequences": 20,
    "data.finetune": None,
    "transfer.max_steps": 6,
    "transfer.validate_every": 3,
    "finetune.enabled": False,
}


@dataclass
class Traced:
    code: int
    err: str
    hit: str  # the call that was disturbed, as strace tells it; empty: there was none


class SyscallCrash(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if shutil.which("strace") is None:
            raise unittest.SkipTest("strace is not installed")
        probe = subprocess.run(["strace", "-D", "-qq", "-o", "/dev/null", "true"], capture_output=True, text=True)
        if probe.returncode != 0:
            raise unittest.SkipTest(f"strace may not trace here: {probe.stderr.strip()}")
        cls.job = job.Job(RECIPE)
        cls.addClassCleanup(cls.job.close)
        cls.wrapper = cls.job.root / "hedgerow-worker"
        cls.wrapper.write_text(WRAPPER.format(worker=cls.job.bin / "hedgerow-worker"))
        cls.wrapper.chmod(0o755)
        ended = cls.job.run()
        if ended.code != 0:
            raise AssertionError(f"the undisturbed run failed: {ended}")
        cls.expected = cls.hash_of(cls.job.run_directory)
        cls.template = cls.job.root / "template"  # recipe and tokens, and nothing computed
        cls.template.mkdir()
        shutil.copy(cls.job.run_directory / "run.toml", cls.template)
        shutil.copytree(cls.job.run_directory / "tokens", cls.template / "tokens")
        cls.calls = {victim: cls.calls_on_the_run(victim) for victim in ("coordinator", "serve")}

    @staticmethod
    def hash_of(run: Path) -> str:
        newest = max(run.glob("student/*/feature_maps.safetensors"), key=lambda path: int(path.parent.name.lstrip("t")))
        return job.digest(newest)

    @classmethod
    def begin(cls) -> Path:
        run = cls.job.root / "disturbed"
        cls.job.kill_leftovers()
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(cls.template, run)
        return run

    @classmethod
    def traced(cls, run: Path, victim: str, options: list[str]) -> Traced:
        log = cls.job.root / "strace.log"
        once = cls.job.root / "traced"
        log.unlink(missing_ok=True)
        shutil.rmtree(once, ignore_errors=True)
        command: list[str | Path] = [cls.job.bin / "hedgerow", "run", "--run", run]
        environment = {**os.environ, "NO_COLOR": "1"}
        words = ["-o", str(log), *options]
        if victim == "coordinator":
            command = ["strace", "-D", "-qq", *words, *command]
        else:
            environment |= {"HEDGEROW_WORKER": str(cls.wrapper), "TRACED_ONCE": str(once), "TRACED_OPTIONS": " ".join(words)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, timeout=120)
        lines = log.read_text().splitlines() if log.exists() else []
        hit = next((line for line in lines if "(INJECTED)" in line), "")
        if not hit and any("killed by SIGKILL" in line for line in lines):
            hit = lines[-1]
        return Traced(done.returncode, done.stderr, hit)

    @classmethod
    def calls_on_the_run(cls, victim: str) -> dict[str, list[int]]:
        """Of each call, which of them in an undisturbed run concern the run directory: the first is 1."""
        run = cls.begin()
        ended = cls.traced(run, victim, ["-y", "-e", f"trace={CALLS}"])
        if ended.code != 0:
            raise AssertionError(f"the run under strace failed: {ended}")
        made: collections.Counter = collections.Counter()
        found: dict[str, list[int]] = {call: [] for call in CALLS.split(",")}
        for line in (cls.job.root / "strace.log").read_text().splitlines():
            call = line.split("(")[0]
            made[call] += 1
            if call in found and str(run) in line:
                found[call].append(made[call])
        return found

    def check(self, victim: str, call: str, effect: str, n: int) -> dict:
        run = self.begin()
        ended = self.traced(run, victim, ["-y", "-e", f"trace={call}", "-e", f"inject={call}:{effect}:when={n}"])
        told = f"{effect} at {call} {n} of the {victim}: {ended}"
        # The n-th call need not be the one that it was in the undisturbed run. Where it met libzmq's eventfd, the kernel would
        # never have given that error, and libzmq aborts.
        is_possible = effect == KILL or "<anon_inode:" not in ended.hit
        if victim == "coordinator" and effect == KILL:
            self.assertEqual(ended.code, -9 if ended.hit else 0, told)
        elif ended.code != 0 and is_possible:
            self.assertEqual(victim, "coordinator", f"a worker's failure ended the run\n{told}")
            self.assertIn(ended.code, TABLE, told)
            self.assertEqual(len(re.findall(r"(?m)^hedgerow run: .*$", ended.err)), 1, told)
        again = subprocess.run([self.job.bin / "hedgerow", "run", "--run", run], capture_output=True, text=True,
                               stdin=subprocess.DEVNULL, timeout=120)
        self.assertEqual(again.returncode, 0, f"{told}\n--- the same command again\n{again.stderr[-3000:]}")
        self.assertEqual(self.hash_of(run), self.expected, f"other bytes\n{told}")
        checked = subprocess.run([self.job.bin / "hedgerow", "check", "--run", run], capture_output=True, text=True)
        self.assertEqual(checked.returncode, 0, f"{told}\n{checked.stdout}")
        return {"victim": victim, "call": call, "effect": effect, "n": n, "exit_code": ended.code, "hit": bool(ended.hit)}

    def test_after_a_crash_or_an_error_at_any_call_the_same_command_completes_with_the_same_bytes(self) -> None:
        results = []
        for seed in SEEDS:
            draw = random.Random(seed)
            for victim, call, effect in FAULTS:
                n = draw.choice(self.calls[victim][call])
                with self.subTest(victim=victim, call=call, effect=effect, n=n, seed=seed):
                    results.append(self.check(victim, call, effect, n))
        codes = collections.Counter(result["exit_code"] for result in results)
        hits = sum(result["hit"] for result in results)
        print(json.dumps({"test": "crash at the nth system call", "sampled": len(results), "hit": hits,
                          "exit_codes": {str(code): count for code, count in sorted(codes.items())},
                          "calls": {victim: {call: len(found) for call, found in calls.items()} for victim, calls in self.calls.items()}}), flush=True)
        self.assertGreaterEqual(hits, len(results) * 2 // 3, "hardly a fault was injected")


if __name__ == "__main__":
    unittest.main()
