"""Reads the text sources of a recipe's data section into documents, not yet tokenized.

A document is one or more pieces of text, tokenized piece by piece, with the character spans whose tokens count as
targets of the finetune loss. Formats: README.md "Sources".
"""

from __future__ import annotations

import gzip
import json
import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

from common import UsageError

FORMATS = ("text", "jsonl", "alpaca", "records", "chat", "tokens")
LABEL_MASKS = ("all", "answer")
# A plain text is tokenized in pieces of about this many characters, cut at paragraphs: bounded memory, all cores.
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
    if (source.format == "jsonl") != bool(source.template):
        raise UsageError(f"{where}.template: format jsonl needs one, as \"{{question}}\\n{{answer}}\", no other takes it")
    if source.format == "text" and source.label_mask == "answer":
        raise UsageError(f"{where}.label_mask: plain text has no answers; use label_mask = \"all\"")
    return source


def read_text(path: Path) -> str:
    """UTF-8 text, through gzip if the name ends in .gz. A byte order mark is dropped, CRLF stays."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory; name a file") from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise UsageError(f"{path}: damaged gzip file ({error})") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; convert the file (iconv -t UTF-8)") from None


def _records(path: Path) -> Iterator[tuple[str, dict]]:
    """(where, record) of a JSON array or of JSON lines; by the first character, not by the file's name."""
    text = read_text(path)
    if text.lstrip()[:1] == "[":
        try:
            entries = json.loads(text)
        except ValueError as error:
            raise UsageError(f"{path}: not valid JSON: {error}") from None
        for index, record in enumerate(entries):
            yield _record(f"{path}, record {index}", record)
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: not valid JSON: {error}") from None
            yield _record(f"{path}:{number}", record)


def _record(where: str, record: Any) -> tuple[str, dict]:
    if not isinstance(record, dict):
        raise UsageError(f"{where}: expected a JSON object, found {type(record).__name__}")
    return where, record


def _string(where: str, record: dict, key: str, default: str | None = None) -> str:
    value = record.get(key, default)
    if not isinstance(value, str):
        found = "nothing" if value is None else type(value).__name__
        raise UsageError(f"{where}: key '{key}': expected a string, found {found}")
    return value


def _text(source: Source) -> Iterator[Document]:
    text = read_text(source.path)
    pieces, begin = [], 0
    while len(text) - begin > TEXT_PIECE_CHARACTERS:
        cut = text.find("\n\n", begin + TEXT_PIECE_CHARACTERS)
        if cut < 0:
            break
        pieces.append(text[begin:cut + 2])
        begin = cut + 2
    pieces.append(text[begin:])
    if text:
        yield Document(tuple(pieces), splittable=True)


def _jsonl(source: Source) -> Iterator[Document]:
    try:
        parsed = list(string.Formatter().parse(source.template))
    except ValueError as error:
        raise UsageError(f"template {source.template!r}: {error}") from None
    fields = [field for _, field, _, _ in parsed if field is not None]
    if not fields or any(not field.isidentifier() for field in fields):
        raise UsageError(f"template {source.template!r}: expected plain fields, as {{question}}, found {fields}")
    for where, record in _records(source.path):
        text, answer = "", 0
        for literal, field, _, _ in parsed:
            text += literal
            if field is not None:
                answer = len(text)
                text += _string(where, record, field)
        yield Document((text,), ((0, answer, len(text)),) if source.label_mask == "answer" else None)


def _alpaca(source: Source) -> Iterator[Document]:
    for where, record in _records(source.path):
        given = {"instruction": _string(where, record, "instruction"), "input": _string(where, record, "input", "")}
        prompt = (ALPACA_WITH_INPUT if given["input"] else ALPACA_WITHOUT_INPUT).format(**given)
        answer = _string(where, record, "output")
        yield Document((prompt, answer), ((1, 0, len(answer)),) if source.label_mask == "answer" else None)


def _plain_records(source: Source) -> Iterator[Document]:
    for where, record in _records(source.path):
        prompt = _string(where, record, "instruction") + "\n" + _string(where, record, "input", "") + "\n"
        text = prompt + _string(where, record, "output")
        yield Document((text,), ((0, len(prompt), len(text)),) if source.label_mask == "answer" else None)


def _chat(source: Source, render: Callable[..., str]) -> Iterator[Document]:
    for where, record in _records(source.path):
        messages = record.get("messages")
        if not isinstance(messages, list) or not messages:
            raise UsageError(f"{where}: key 'messages': expected a list of {{role, content}}")
        for message in messages:
            _string(*_record(where, message), "role")
            _string(where, message, "content")
        text, answers = render(messages), []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = render(messages[:index], True), render(messages[:index + 1])
                if not (after.startswith(before) and text.startswith(after)):
                    raise UsageError(f"{where}: this chat template rewrites earlier turns, so answers cannot be masked; "
                                     "use label_mask = \"all\"")
                answers.append((0, len(before), len(after)))
        yield Document((text,), tuple(answers) if source.label_mask == "answer" else None, own_end=True)


def documents(source: Source, render_chat: Callable[..., str]) -> Iterator[Document]:
    """The documents of one source in file order. UsageError names file and record."""
    if source.format == "chat":
        return _chat(source, render_chat)
    return {"text": _text, "jsonl": _jsonl, "alpaca": _alpaca, "records": _plain_records}[source.format](source)
