"""Text to token ids and back, one JSON object a line on stdin, one reply a line on stdout, until end of file.

  {"encode": "text"}                      -> {"ids": [...]}     as AutoTokenizer(...)(text) gives them
  {"chat": [{"role":..., "content":...}]} -> {"ids": [...]}     the chat template with the assistant's turn opened
  {"decode": [ids], "after": [ids]}       -> {"text": "..."}    of the first ids, which follow the others; without special
                                                                tokens unless "keep_special" is true

"add_bos" of the first two is "auto", as the tokenizer or the template has it, or true or false in its place.

A request that cannot be served is answered {"error": "..."}; the exchange goes on.
"""

from __future__ import annotations

import argparse
import json
import sys

from common import UsageError, model_directory, run_main
from model_tokenizer import ModelTokenizer


def answer(tokenizer: ModelTokenizer, line: str) -> dict:
    """The reply to one request line."""
    try:
        request = json.loads(line)
    except ValueError as error:
        raise UsageError(f"not valid JSON: {error}") from None
    if not isinstance(request, dict):
        raise UsageError(f"expected a JSON object, found {type(request).__name__}")
    add_bos = request.get("add_bos", "auto")
    if add_bos not in ("auto", True, False):
        raise UsageError(f'add_bos: expected "auto", true or false, found {add_bos!r}')
    if isinstance(request.get("encode"), str):
        return {"ids": tokenizer.prompt_ids(request["encode"], add_bos)}
    if isinstance(request.get("chat"), list):
        return {"ids": tokenizer.chat_ids(request["chat"], add_bos)}
    if "decode" in request and all(_are_ids(request.get(key, [])) for key in ("decode", "after")):
        return {"text": tokenizer.decode(request["decode"], not request.get("keep_special", False), request.get("after", []))}
    raise UsageError('expected {"encode": text}, {"chat": [messages]} or {"decode": [ids], "after": [ids]}')


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(i, int) for i in value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    tokenizer = ModelTokenizer(model_directory(parser.parse_args().model))
    for line in sys.stdin:
        if line.strip():
            try:
                reply = answer(tokenizer, line)
            except UsageError as error:
                reply = {"error": str(error)}
            print(json.dumps(reply, ensure_ascii=False), flush=True)
    return 0


if __name__ == "__main__":
    run_main(main)
