"""Says which format reads a data file, by the very readers of sources.py over its first records.

  look_at_source.py FILE [--format F] [--template T] [--label-mask M] [--model DIR]

Prints {"event":"source","format":...,"template":...,"what":...,"fields":[...],"unused":[...]}, or refuses in one line on
stderr with exit code 2. Without --format and --template it recognizes them. With --model, chats are rendered by the model's
template, so that what is accepted can be tokenized. `fields` are the first record's, `unused` those that hold text which the
format does not read. Called by: hedgerow init.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Callable

from common import UsageError, model_directory, require_file, run_main
from source_shape import Shape, recognize, refusal
from sources import GENERATED, Source, documents

FORMATS = ("text", "jsonl", "alpaca", "records", "chat", "tokens", *GENERATED)
LABEL_MASKS = ("all", "answer")
WHOLE_BYTES = 32 << 20  # a smaller file is read to its end
RECORDS = 256  # of a larger one
MOST_CHARACTERS = 64 << 20


def check_source(source: Source) -> None:
    """UsageError for a choice that no recipe may make either (storage/recipe/recipe_fields.hpp, recipe.cpp)."""
    if source.format not in FORMATS:
        raise UsageError(f"{source.path}.format: '{source.format}' is not one of {', '.join(FORMATS)}")
    if source.label_mask not in LABEL_MASKS:
        raise UsageError(f"{source.path}.label_mask: '{source.label_mask}' is not one of {', '.join(LABEL_MASKS)}")
    if source.format != "jsonl" and source.template:
        raise UsageError(f"{source.path}.template: is for format jsonl, not for {source.format}")
    if source.format == "text" and source.label_mask == "answer":
        raise UsageError(f"{source.path}.label_mask: plain text has no answers; use label_mask = \"all\"")


def chosen(path: Path, shape: Shape, options: argparse.Namespace) -> Source:
    """The options go before what the file looks like."""
    format_, template = options.format or "", options.template or ""
    if not format_:
        format_ = "jsonl" if template and shape.format != "text" else shape.format
        template = template or shape.template
    if not format_:
        raise refusal(path, shape)
    if format_ == "jsonl" and not template:
        template = "{text}"
    source = Source(path, format_, template, options.label_mask)
    check_source(source)
    return source


def try_source(source: Source, render_chat: Callable[..., str]) -> list[str]:
    """Reads the beginning of the source; the fields that hold text and are not read."""
    unused: list[str] = []
    if source.format == "tokens":
        return unused
    is_whole = source.path.stat().st_size <= WHOLE_BYTES
    count = characters = 0
    for document in documents(source, render_chat, on_unused=lambda field, text: unused.append(field) if field else None):
        count += 1
        characters += sum(map(len, document.pieces))
        if not is_whole and (count >= RECORDS or characters >= MOST_CHARACTERS):
            break
    if not count:
        raise UsageError(f"{source.path}: holds no record")
    return unused


def bare(messages: list[dict], add_generation_prompt: bool = False, **_extra: Any) -> str:
    """In place of a model's template: the texts alone."""
    contents = [message.get("content", "") for message in messages]
    return "\n".join(c if isinstance(c, str) else "".join(part["text"] for part in c) for c in contents)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--format", help="of the recipe's sources; recognized if left out")
    parser.add_argument("--template", help="of format jsonl, as '{question} {answer}'")
    parser.add_argument("--label-mask", default="all", help="all or answer")
    parser.add_argument("--model", help="Hugging Face directory, or org/name in the local cache")
    options = parser.parse_args()
    path = options.file.absolute()
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if not require_file(path).stat().st_size:
        raise UsageError(f"{path}: is empty")
    shape = recognize(path)
    source = chosen(path, shape, options)
    render: Callable[..., str] = bare
    readable = source
    if source.format == "chat" and options.model:
        from model_tokenizer import ModelTokenizer

        render = ModelTokenizer(model_directory(options.model)).render_chat
    elif source.format == "chat":
        readable = Source(source.path, source.format, source.template, "all")
    unused = try_source(readable, render)
    print(json.dumps({"event": "source", "format": source.format, "template": source.template, "what": shape.what,
                      "fields": list(shape.fields), "unused": unused}))
    return 0


if __name__ == "__main__":
    run_main(main)
