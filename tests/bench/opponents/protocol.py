"""How the bench drives an opponent: one process each, so that repeats of both sides can alternate.

The opponent sets itself up, warms up once, and prints {"ready": true, ...}. For each line "go" on stdin it does one timed
repeat and answers {"seconds": ..., ...}; end of file ends it. All lines are JSON, on stdout alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Callable

import numpy as np


def common_arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--tokens", type=Path, help="tokens file; random ids without it")
    parser.add_argument("--sequences", type=int, default=4, help="sequences a repeat")
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--micro-batch", type=int, default=4, help="sequences at once")
    parser.add_argument("--threads", type=int, default=0, help="0: what PyTorch takes by itself")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="weights and products")
    return parser


def load_ids(options: argparse.Namespace, vocab_size: int):
    """int64 [sequences, seq_len]: the first tokens of the file's training sequences, joined and cut anew."""
    import torch
    need = options.sequences * options.seq_len
    if options.tokens is None:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, vocab_size, (options.sequences, options.seq_len), generator=generator)
    import h5py
    with h5py.File(options.tokens) as file:
        flat = file["input_ids"][:].ravel()[:need].astype(np.int64)
    if len(flat) < need:
        sys.exit(f"error: {options.tokens} holds {len(flat)} tokens, {need} are needed")
    return torch.from_numpy(flat).reshape(options.sequences, options.seq_len)


def serve(repeat: Callable[[], dict[str, Any] | None], facts: dict[str, Any]) -> None:
    """Warms up once, then answers "go" lines until end of file."""
    repeat()
    print(json.dumps({"ready": True, **facts}), flush=True)
    for line in sys.stdin:
        if line.strip() != "go":
            print(json.dumps({"error": f"unknown request {line.strip()!r}; known: go"}), flush=True)
            continue
        begin = time.perf_counter()
        more = repeat() or {}
        seconds = time.perf_counter() - begin
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": seconds, "peak_mib": round(peak_mib), **more}), flush=True)
