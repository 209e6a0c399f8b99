"""Reads the text sources of a recipe's data section into documents, not yet tokenized.

A document is one or more pieces of text, tokenized piece by piece, with the character spans whose tokens count as
targets of the finetune loss. Formats: README.md "Sources".
"""

from __future__ import annotations

import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Iterator

from common import UsageError
from reading import OnBytes, check_record, read_parts, read_records

FORMATS = ("text", "jsonl", "alpaca", "records", "chat", "tokens")
LABEL_MASKS = ("all", "answer")
# A plain text is tokenized in pieces of about this many characters (less than twice as many), cut at paragraphs.
TEXT_PIECE_CHARACTERS = 8 << 20

# The two templates of Stanford Alpaca (Taori et al. 2023).
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n")


@dataclass(frozen=True)
class Document:
    """Text in pieces; `answers` are (piece, begin, end) in characters, None: everything counts."""

    pieces: tuple[str, ...]
    answers: tuple[tuple[int, int, int], ...] | None = None
    own_end: bool = False  # carries its end-of-text tokens itself (chat templates)
    splittable: bool = False  # plain text: may be cut at a paragraph
    # A long plain text comes in fragments, each a Document: which of them is its first, its last.
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True)
class Source:
    """One entry of `sources`, checked."""

    path: Path
    format: str
    template: str
    label_mask: str


def parse_source(entry: Any, where: str, base: Path) -> Source:
    """A TOML table to a Source. UsageError names the key."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not entry["path"]:
        raise UsageError(f"{where}: expected a table with a path, as {{ path = \"text.txt\" }}, found {entry!r}")
    unknown = sorted(set(entry) - {"path", "format", "template", "label_mask"})
    if unknown:
        raise UsageError(f"{where}.{unknown[0]} is not a known key; known: path, format, template, label_mask")
    path = Path(entry["path"]).expanduser()
    source = Source(path if path.is_absolute() else base / path, entry.get("format", "text"),
                    entry.get("template", ""), entry.get("label_mask", "all"))
    if source.format not in FORMATS:
        raise UsageError(f"{where}.format: '{source.format}' is not one of {', '.join(FORMATS)}")
    if source.label_mask not in LABEL_MASKS:
        raise UsageError(f"{where}.label_mask: '{source.label_mask}' is not one of {', '.join(LABEL_MASKS)}")
    if source.format == "jsonl" and not source.template:
        source = replace(source, template="{text}")
    if source.format != "jsonl" and source.template:
        raise UsageError(f"{where}.template: is for format jsonl, not for {source.format}")
    if source.format == "text" and source.label_mask == "answer":
        raise UsageError(f"{where}.label_mask: plain text has no answers; use label_mask = \"all\"")
    return source


def _string(where: str, record: dict, key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        found = "nothing" if value is None else type(value).__name__
        raise UsageError(f"{where}: key '{key}': expected a string, found {found}")
    return value


def _text(source: Source, on_bytes: OnBytes) -> Iterator[Document]:
    """One document, in fragments where it is long."""
    previous = None
    for piece in _pieces(read_parts(source.path, on_bytes)):
        if previous is not None:
            yield replace(previous, ends=False)
        previous = Document((piece,), splittable=True, begins=previous is None)
    if previous is not None:
        yield previous


def _pieces(parts: Iterator[str]) -> Iterator[str]:
    text = ""
    for part in parts:
        text += part
        while len(text) >= 2 * TEXT_PIECE_CHARACTERS:
            cut = _cut(text)
            yield text[:cut]
            text = text[cut:]
    while len(text) > TEXT_PIECE_CHARACTERS and text.find("\n\n", TEXT_PIECE_CHARACTERS) >= 0:
        cut = _cut(text)
        yield text[:cut]
        text = text[cut:]
    if text:
        yield text


def _cut(text: str) -> int:
    """Behind a paragraph, or else behind a line, or else before a space."""
    for mark, behind in (("\n\n", 2), ("\n", 1), (" ", 0)):
        cut = text.find(mark, TEXT_PIECE_CHARACTERS)
        if cut >= 0:
            return cut + behind
    return 2 * TEXT_PIECE_CHARACTERS


def _jsonl(source: Source, on_bytes: OnBytes) -> Iterator[Document]:
    try:
        parsed = list(string.Formatter().parse(source.template))
    except ValueError as error:
        raise UsageError(f"template {source.template!r}: {error}") from None
    fields = [field for _, field, _, _ in parsed if field is not None]
    if not fields or any(not field.isidentifier() for field in fields):
        raise UsageError(f"template {source.template!r}: expected plain fields, as {{question}}, found {fields}")
    for where, record in read_records(source.path, on_bytes):
        text, answer = "", 0
        for literal, field, _, _ in parsed:
            text += literal
            if field is not None and field not in record:
                raise UsageError(f"{where}: the template {source.template!r} names '{field}', the record has "
                                 f"{', '.join(map(repr, record)) or 'nothing'}; set another template")
            if field is not None:
                answer = len(text)
                text += _string(where, record, field)
        yield Document((text,), ((0, answer, len(text)),) if source.label_mask == "answer" else None)


def _alpaca(source: Source, on_bytes: OnBytes) -> Iterator[Document]:
    for where, record in read_records(source.path, on_bytes):
        given = {"instruction": _string(where, record, "instruction"), "input": _string(where, record, "input", "")}
        prompt = (ALPACA_WITH_INPUT if given["input"] else ALPACA_WITHOUT_INPUT).format(**given)
        answer = _string(where, record, "output")
        yield Document((prompt, answer), ((1, 0, len(answer)),) if source.label_mask == "answer" else None)


def _plain_records(source: Source, on_bytes: OnBytes) -> Iterator[Document]:
    for where, record in read_records(source.path, on_bytes):
        prompt = _string(where, record, "instruction") + "\n" + _string(where, record, "input", "") + "\n"
        text = prompt + _string(where, record, "output")
        yield Document((text,), ((0, len(prompt), len(text)),) if source.label_mask == "answer" else None)


# ShareGPT's words for who speaks.
SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}


def _turn(where: str, turn: dict) -> dict[str, str]:
    """{"role", "content"} of a message in this spelling or in ShareGPT's, {"from", "value"}."""
    if "from" not in turn:
        return {**turn, "role": _string(where, turn, "role"), "content": _string(where, turn, "content")}
    role = _string(where, turn, "from")
    if role not in SHAREGPT_ROLES:
        raise UsageError(f"{where}: key 'from': expected one of {', '.join(SHAREGPT_ROLES)}, found '{role}'")
    return {"role": SHAREGPT_ROLES[role], "content": _string(where, turn, "value")}


def _chat(source: Source, on_bytes: OnBytes, render: Callable[..., str]) -> Iterator[Document]:
    for where, record in read_records(source.path, on_bytes):
        key = "messages" if "messages" in record else "conversations"
        if not isinstance(record.get(key), list) or not record[key]:
            raise UsageError(f"{where}: key 'messages' (or 'conversations', as in ShareGPT): expected a list of turns")
        messages = [_turn(*check_record(where, turn)) for turn in record[key]]
        text, answers = render(messages), []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = render(messages[:index], True), render(messages[:index + 1])
                if not (after.startswith(before) and text.startswith(after)):
                    raise UsageError(f"{where}: this chat template rewrites earlier turns, so answers cannot be masked; "
                                     "use label_mask = \"all\"")
                answers.append((0, len(before), len(after)))
        yield Document((text,), tuple(answers) if source.label_mask == "answer" else None, own_end=True)


def documents(source: Source, render_chat: Callable[..., str],
              on_bytes: OnBytes = lambda done: None) -> Iterator[Document]:
    """The documents of one source in file order, read as they are asked for. UsageError names file and record."""
    if source.format == "chat":
        return _chat(source, on_bytes, render_chat)
    return {"text": _text, "jsonl": _jsonl, "alpaca": _alpaca, "records": _plain_records}[source.format](source, on_bytes)
