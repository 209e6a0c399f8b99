"""The coordinator with ten thousand workers on real sockets, and its restart with a hundred thousand tasks (scale_bench)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

from bench_common import Context, Row

ROWS = [
    ("coordinator_core_percent", "of a core", "%", "<= 20"),
    ("coordinator_peak_mb", "memory", "MB", "<= 500"),
    ("request_p99_ms", "a request for a task, 99th percentile", "ms", "<= 10"),
    ("restart_first_grant_s", "from SIGKILL to the next coordinator's first grant", "s", "<= 5"),
    ("coordinator_peak_after_restart_mb", "memory of the next coordinator", "MB", "<= 500"),
    ("leases_lost", "leases lost over that", "", "== 0"),
]


def scale(context: Context) -> Iterator[Row]:
    """10,000 workers that beat every 5 s, 100,000 tasks that end and begin all the while; plain, then with CURVE."""
    for name, arguments in (("10,000 workers", []), ("10,000 workers, encrypted", ["--keys"])):
        done = subprocess.run([context.program("scale_bench"), *arguments], capture_output=True, text=True, check=False)
        print(done.stderr, end="", file=sys.stderr)
        measured = json.loads(done.stdout) if done.returncode == 0 else {}
        for key, what, unit, goal in ROWS:
            yield Row(f"{name}: {what}", measured.get(key), unit, goal)
