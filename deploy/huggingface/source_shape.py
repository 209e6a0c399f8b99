"""What a data file holds, by its name, its beginning and its first record: the format that reads it, or what to do.

`look_at_source.py` proposes this format; `sources.py` refuses to read as plain text what is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import UsageError
from reading import HDF5, TURNS, first_bytes, read_records, records_kind
from tables import names

NO_FORMAT = ", and no format takes them as they are; say which text a record is, as --template '{}', or another --format"


@dataclass(frozen=True)
class Shape:
    """Format "" : none fits; `what` and `fields` are for people, `advice` what to do then."""

    format: str
    what: str
    template: str = ""
    fields: tuple[str, ...] = ()
    advice: str = ""


def _is_plain(record: dict, *keys: str) -> bool:
    """Whether each key is there and holds no list and no object. Whether it is text, the reader of the format says."""
    return all(key in record and not isinstance(record[key], (list, dict)) for key in keys)


def _turns(record: dict, *keys: str) -> list[dict]:
    """The first of the keys that holds a list of objects."""
    for key in keys:
        if isinstance(record.get(key), list) and all(isinstance(turn, dict) for turn in record[key]):
            return record[key]
    return []


def _fitting(record: dict) -> tuple[str, str, str]:
    """(format, template, what) of a record. Alpaca's often carry their prompt and answer as a "text" too."""
    if turns := _turns(record, *TURNS):
        if any(turn.get("from") is not None for turn in turns):
            return "chat", "", "ShareGPT conversations"
        if any("role" in turn for turn in turns):
            return "chat", "", "chat messages"
    if _turns(record, "prompt") and _turns(record, "completion"):
        return "chat", "", "chat prompts and completions"
    if _is_plain(record, "instruction", "output"):
        return "alpaca", "", "Alpaca records"
    if _is_plain(record, "text"):
        return "jsonl", "{text}", "{} records with a \"text\""
    if _is_plain(record, "instruction", "response"):
        return "alpaca", "", "Dolly records"
    if _is_plain(record, "prompt", "completion"):
        return "jsonl", "{prompt}{completion}", "prompts and completions"
    if _is_plain(record, "content") and "role" not in record:
        return "jsonl", "{content}", "{} records with a \"content\""
    return "", "", "{} records"


def recognize(path: Path) -> Shape:
    """UsageError where the first record cannot be read or there is none."""
    if first_bytes(path).startswith(HDF5):
        return Shape("tokens", "a tokens file")
    container = records_kind(path)
    if not container:
        return Shape("text", "plain text")
    first: Any = next(read_records(path), None)
    if first is None:
        raise UsageError(f"{path}: holds no record")
    record = first[1]
    format_, template, what = _fitting(record)
    what = what.replace("{}", container)
    fields = tuple(record)
    if format_:
        return Shape(format_, what, template, fields)
    lists = [field for field, value in record.items() if isinstance(value, list) and value and isinstance(value[0], dict)]
    texts = [field for field, value in record.items() if isinstance(value, str) and field.isidentifier()]
    if lists and len(fields) > 1 and not texts:
        return Shape("", what, "", fields, f", and no format takes them as they are; if '{lists[0]}' holds the records, "
                     "write it to a file of its own")
    template = " ".join("{%s}" % field for field in texts[:3]) or "{question} {answer}"
    return Shape("", what, "", fields, NO_FORMAT.replace("{}", template))


def refusal(path: Path, shape: Shape) -> UsageError:
    """Of a file that no format takes."""
    return UsageError(f"{path}: holds {shape.what} with {names(shape.fields)}{shape.advice}")


def refuse_records_as_text(path: Path) -> None:
    """UsageError if plain text would be the wrong reading: keys and braces would be learned like prose."""
    try:
        shape = recognize(path)
    except UsageError as error:
        if not first_bytes(path, 1):
            return  # an empty file is too short, whatever its name
        raise UsageError(f"{error} (by its name or beginning it is no plain text; if it is, name it .txt)") from None
    if shape.format != "text":
        template = f", template = \"{shape.template}\"" if shape.template else ""
        fits = f"set format = \"{shape.format}\"{template}" if shape.format else "set format = \"jsonl\" with a template"
        raise UsageError(f"{path}: holds {shape.what}, but its format is \"text\", so keys and marks would be learned like "
                         f"prose; {fits}")
