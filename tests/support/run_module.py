"""Runs one unittest module for ctest: run_module.py DIR/modeling_test.py. Exit 77 (skipped, with the reason) if nothing ran."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path


def main() -> int:
    file = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(file.parent))
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(file.stem)
    except unittest.SkipTest as reason:
        print(f"SKIPPED {file.stem}: {reason}")
        return 77
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    for test, reason in result.skipped:
        print(f"SKIPPED {test.id()}: {reason}")
    if not result.wasSuccessful():
        return 1
    if result.testsRun == 0 and not result.skipped:
        print(f"no test in {file}")
        return 1
    return 77 if result.skipped and len(result.skipped) >= result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main())
