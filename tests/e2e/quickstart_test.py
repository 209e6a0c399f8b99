"""deploy/quickstart beside another one.

Catches: a second quickstart that truncates the first one's log, or that waits without saying for whom.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

QUICKSTART = Path(__file__).resolve().parents[2] / "deploy" / "quickstart"


class Quickstart(unittest.TestCase):
    def test_a_second_one_is_refused_naming_the_holder_and_leaves_the_log_alone(self) -> None:
        with tempfile.TemporaryDirectory() as cache:
            work = Path(cache) / "quickstart"
            work.mkdir()
            (work / "quickstart.log").write_text("the first one's\n")
            with (work / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write("4711\n")
                lock.flush()
                second = subprocess.run([QUICKSTART], capture_output=True, text=True, timeout=60,
                                        env={**os.environ, "HEDGEROW_CACHE": cache})
            self.assertEqual(second.returncode, 5, second)
            self.assertEqual(second.stdout, "", "it began")
            self.assertIn("process 4711", second.stderr)
            self.assertEqual((work / "quickstart.log").read_text(), "the first one's\n")


if __name__ == "__main__":
    unittest.main()
