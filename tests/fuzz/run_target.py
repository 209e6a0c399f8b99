#!/usr/bin/env python3
"""Runs one fuzz target over its kept corpus, and prints what came of it as one JSON line.

  run_target.py TARGET CORPUS --out DIR [--seconds N]

TARGET is a libFuzzer program, CORPUS the folder of inputs in the repository, which is read and never written. Inputs that
reach something new go to DIR/corpus/<name>, inputs that crash or hang to DIR/crashes/<name>, all that the program said to
DIR/<name>.log; the line itself also to DIR/<name>.json. Seconds of a core, which a target gets however many run beside it:
HEDGEROW_FUZZ_SECONDS, else 20, or 60 by tests/run --all. Exit code 1 on a crash.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "support" / "budget"))
import sizes  # noqa: E402
from processes import stat_of  # noqa: E402

DEFAULT_SECONDS = sizes.of_run(20, 60, 60)
SLOWEST_INPUT_S = 25  # of the clock: on two cores five targets take turns
MEMORY_MIB = 2048
LONGEST_INPUT = 16384
LOOK_EVERY_S = 0.2
PATIENCE = 60  # times its seconds, by the clock: then the target ends by itself, should nobody be left to end it
# Short stacks of allocations: a quarter faster, and a crash is run again by hand anyway.
SANITIZERS = {"ASAN_OPTIONS": "malloc_context_size=2", "UBSAN_OPTIONS": "print_stacktrace=1"}


def numbers_of(log: str) -> dict[str, int]:
    """What -print_final_stats=1 says, and coverage and corpus of the last line that has them."""
    found = {key: int(value) for key, value in re.findall(r"^stat::(\w+):\s+(\d+)$", log, re.MULTILINE)}
    for key, value in re.findall(r" (cov|corp): (\d+)", log):
        found[key] = int(value)
    return found


def run(target: Path, corpus: Path, out: Path, seconds: int) -> dict[str, object]:
    name = target.name.removeprefix("fuzz_")
    fresh, crashes = out / "corpus" / name, out / "crashes" / name
    shutil.rmtree(crashes, ignore_errors=True)
    for directory in (fresh, crashes):
        directory.mkdir(parents=True, exist_ok=True)
    command = [target, f"-max_total_time={PATIENCE * seconds}", f"-timeout={SLOWEST_INPUT_S}",
               f"-rss_limit_mb={MEMORY_MIB}", f"-max_len={LONGEST_INPUT}", "-print_final_stats=1",
               f"-artifact_prefix={crashes}/", fresh, corpus]
    begin, used = time.monotonic(), 0.0
    log = out / f"{name}.log"
    with log.open("w") as said, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                                                 env={**os.environ, **SANITIZERS}) as fuzzer:
        try:
            while fuzzer.poll() is None and used < seconds:
                time.sleep(LOOK_EVERY_S)
                used = stat_of(fuzzer.pid).processor_seconds
        except BaseException:
            fuzzer.kill()
            raise
        fuzzer.send_signal(signal.SIGUSR1)  # libFuzzer's word for: end after this input, say the figures, exit with 0
    numbers = numbers_of(log.read_text(errors="replace"))
    found = sorted(str(path) for path in crashes.iterdir())
    return {"target": name, "executions": numbers.get("number_of_executed_units", 0), "corpus": numbers.get("corp", 0),
            "kept": sum(path.is_file() for path in corpus.iterdir()), "coverage": numbers.get("cov", 0),
            "seconds": round(time.monotonic() - begin, 1), "seconds_of_a_core": round(used, 1), "crashes": found,
            "exit_code": fuzzer.returncode, "log": str(log)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=int(os.environ.get("HEDGEROW_FUZZ_SECONDS", DEFAULT_SECONDS)))
    options = parser.parse_args()
    if options.seconds < 1:
        parser.error("--seconds: at least 1")
    result = run(options.target, options.corpus, options.out, options.seconds)
    line = json.dumps(result)
    (options.out / f"{result['target']}.json").write_text(line + "\n")
    print(line)
    if result["exit_code"] != 0 or result["executions"] == 0:
        tail = "\n".join(Path(str(result["log"])).read_text().splitlines()[-60:])
        print(f"{tail}\n{options.target.name}: exit code {result['exit_code']}; mend what it found and keep the input in "
              f"{options.corpus}: {', '.join(result['crashes']) or 'none was written'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
