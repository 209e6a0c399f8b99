"""The beginning of a text as the tokens of a sentence encoder, for `hedgerow lab encoder --model`.

  encode_text.py --model DIR --text FILE --out FILE.safetensors [--bytes N]

Writes `ids`, int64 [tokens], line after line without special tokens, and `ends`, int64 [2]: what a sentence begins and ends with
([CLS] and [SEP]). {"event": "done", "tokens", "seconds"} on stdout. Exit 2 where the tokenizer has no such tokens.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

import numpy as np

from common import UsageError, require_file, run_main, write_safetensors
from model_tokenizer import auto_tokenizer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--bytes", type=int, default=8 << 20, help="of the text, from its beginning")
    given = parser.parse_args()
    began = time.monotonic()
    if not (given.model / "tokenizer.json").is_file():
        raise UsageError(f"{given.model / 'tokenizer.json'}: no such file; expected a model directory with a fast tokenizer")
    tokenizer = auto_tokenizer().from_pretrained(given.model)
    ends = [tokenizer.cls_token_id, tokenizer.sep_token_id]
    if None in ends:
        raise UsageError(f"{given.model}: its tokenizer has no [CLS] and [SEP]; expected that of a BERT")
    with open(require_file(given.text), "rb") as stream:
        lines = stream.read(given.bytes).decode(errors="ignore").splitlines()
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    ids = np.fromiter(itertools.chain.from_iterable(
        encoding.ids for encoding in backend.encode_batch(lines, add_special_tokens=False)), dtype="<i8")
    write_safetensors(given.out, [("ends", "I64", (2,), np.array(ends, "<i8").tobytes), ("ids", "I64", (len(ids),), ids.tobytes)])
    print(json.dumps({"event": "done", "tokens": len(ids), "seconds": round(time.monotonic() - began, 2)}), flush=True)
    return 0


if __name__ == "__main__":
    run_main(main)
