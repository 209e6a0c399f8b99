"""The JSON that make_tokens.py reads, for tests that call it without hedgerow (storage/recipe/tokens_section.hpp)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_section(path: Path, sources: list[dict[str, Any]], stage: str = "transfer", **values: Any) -> Path:
    """A source needs a path alone. What `held_out` leaves out is what this stage is judged by."""
    values = {"text": "", "seq_len": 16, "validation_sequences": 0, "max_sequences": 0, "split": "documents",
              "add_bos": "auto", "eos_token_id": -1, **values}
    count = values["validation_sequences"]
    keep = "both" if stage != "evaluate" else "validation" if count else "all"
    whole = [{"format": "text", "template": "", "label_mask": "all", "weight": 0.0, **source, "path": str(source["path"])} for source in sources]
    path.write_text(json.dumps({"stage": stage, "sources": whole, "keep": keep, "held_out": count * values["seq_len"], **values}))
    return path
