"""How often a test draws at random: a part on every change, the whole by tests/run --all, a release's number by --release."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")


def of_run(on_change: T, whole: T, release: T) -> T:
    """The one of the three that this run asks for."""
    if os.environ.get("HEDGEROW_TEST_RELEASE"):
        return release
    return whole if os.environ.get("HEDGEROW_TEST_ALL") else on_change
