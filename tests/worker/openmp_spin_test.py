"""libgomp's spin count in workers, however they are started. libgomp itself is asked: OMP_DISPLAY_ENV makes it print what it
read when it was loaded."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from job import binary_directory  # noqa: E402

OURS = "2000"  # kOpenMpSpinCount (storage/base/openmp_spin.hpp)


ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}


def spin_counts(*command: str | Path, **environment: str) -> list[str]:
    """Of every program that loaded libgomp, in order."""
    done = subprocess.run(command, env={**ENVIRONMENT, "OMP_DISPLAY_ENV": "verbose", **environment}, capture_output=True,
                          text=True, timeout=60)
    if done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}: {done.stderr}")
    return re.findall(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)


class OpenMpSpin(unittest.TestCase):
    worker = binary_directory() / "hedgerow-worker"

    def test_a_worker_that_is_started_by_hand_starts_again_with_the_limit(self) -> None:
        counts = spin_counts(self.worker, "--version")
        self.assertEqual(len(counts), 2, "it starts again once")
        self.assertEqual(counts[-1], OURS)

    def test_every_rank_of_mpirun_computes_with_the_limit(self) -> None:
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun on this machine")
        counts = spin_counts("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", self.worker, "--version")
        self.assertEqual(counts.count(OURS), 2, counts)

    def test_what_the_command_starts_has_the_limit_from_the_beginning(self) -> None:
        program = binary_directory() / "hedgerow"
        done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=120,
                              env={**ENVIRONMENT, "HEDGEROW_WORKER": str(self.reporter())})
        self.assertIn(f"spins {OURS}", done.stdout + done.stderr)

    def reporter(self) -> Path:
        """A program in the worker's place that fails with the spin count that it was given."""
        path = Path(self.enterContext(tempfile.TemporaryDirectory())) / "worker"
        path.write_text('#!/bin/sh\necho "error: spins $GOMP_SPINCOUNT" >&2\nexit 1\n')
        path.chmod(0o755)
        return path

    def test_the_users_own_settings_stay(self) -> None:
        self.assertEqual(spin_counts(self.worker, "--version", GOMP_SPINCOUNT="77"), ["77"])
        self.assertEqual(len(spin_counts(self.worker, "--version", OMP_WAIT_POLICY="active")), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
