"""Every option of the hybrid, as kernels/options/attention_options.hpp has it and says what it means.

Written from there by tests/storage/model/python_rows_test.cpp (HEDGEROW_WRITE=1): not edited by hand.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class OptionRow(NamedTuple):
    default: Any
    least: float | None = None  # of a number
    most: float | None = None
    above_least: bool = False  # the least itself is not allowed
    of_window: bool = False  # 0 without a window
    within_window: bool = False  # at most window_size
    later: bool = False  # exports and operators of earlier builds lack it and mean the default


WINDOWS = ("none", "sliding", "terraced")

OPTIONS = {
    "feature_map": OptionRow("hedgehog_softmax"),
    "negation": OptionRow(True),
    "temperature": OptionRow(1.0, least=0, most=16, above_least=True, later=True),
    "window": OptionRow("terraced"),
    "window_size": OptionRow(64, least=1, most=65536),
    "num_sinks": OptionRow(0, least=0, most=65536, of_window=True, within_window=True, later=True),
    "recall_cache": OptionRow(0, least=0, most=65536, of_window=True, within_window=True, later=True),
    "linear_cap": OptionRow(0, least=0, most=1048576, of_window=True, later=True),
}
