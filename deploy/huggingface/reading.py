"""Reads text files a few megabytes at a time: as pieces of text, as lines, as the records of a JSON file.

Nothing here holds more than one piece, line or record beside the few megabytes that were read last.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any, Callable, Iterator

from common import UsageError, require_file

READ_BYTES = 4 << 20
SPACE = re.compile(r"[ \t\r\n]*")
OnBytes = Callable[[int], None]


def read_parts(path: Path, on_bytes: OnBytes = lambda done: None) -> Iterator[str]:
    """UTF-8 text, through gzip if the name ends in .gz. A byte order mark is dropped, CRLF stays.

    `on_bytes` hears how many bytes of the file (packed ones) were read so far.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    position = 0
    try:
        with require_file(path).open("rb") as packed:
            file = gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" else packed
            while True:
                data = file.read(READ_BYTES)
                begin = position - len(decoder.getstate()[0])  # a character may lie across two reads
                try:
                    text = decoder.decode(data, final=not data)
                except UnicodeDecodeError as error:
                    raise UsageError(f"{path}: byte {begin + error.start} is not UTF-8; convert the file (iconv -t UTF-8)"
                                     ) from None
                position += len(data)
                on_bytes(packed.tell())
                if text:
                    yield text
                if not data:
                    return
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: damaged gzip file ({error})") from None


def read_records(path: Path, on_bytes: OnBytes = lambda done: None) -> Iterator[tuple[str, dict]]:
    """(where, record) of a JSON array or of JSON lines; by the first character, not by the file's name."""
    parts = read_parts(path, on_bytes)
    head = ""
    while not head.strip():
        part = next(parts, None)
        if part is None:
            return
        head += part
    if head.lstrip()[0] == "[":
        yield from _array(path, head, parts)
        return
    for number, line in enumerate(_lines(itertools.chain([head], parts)), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: not valid JSON: {error}") from None
            yield check_record(f"{path}:{number}", record)


def check_record(where: str, record: Any) -> tuple[str, dict]:
    if not isinstance(record, dict):
        raise UsageError(f"{where}: expected a JSON object, found {type(record).__name__}")
    return where, record


def _lines(parts: Iterator[str]) -> Iterator[str]:
    rest = ""
    for part in parts:
        *lines, rest = (rest + part).split("\n")
        yield from lines
    yield rest


def _array(path: Path, text: str, parts: Iterator[str]) -> Iterator[tuple[str, dict]]:
    """The records of a JSON array whose text begins with `text`."""
    decoder = json.JSONDecoder()
    begin = text.index("[") + 1
    for index in itertools.count():
        where = f"{path}, record {index}"
        while True:
            try:
                record, end = _element(decoder, text, begin, index)
                break
            except ValueError as error:
                # It may only be cut off. At least as much again each time, so that a long record costs no square.
                more = "".join(_at_least(parts, len(text) - begin))
                if not more:
                    raise UsageError(f"{where}: not valid JSON: {error}") from None
                text, begin = text[begin:] + more, 0
        begin = end
        if record is None:
            break
        yield check_record(where, record[0])
    if text[begin:].strip() or any(part.strip() for part in parts):
        raise UsageError(f"{path}: not valid JSON: text after the end of the array")


def _element(decoder: json.JSONDecoder, text: str, begin: int, index: int) -> tuple[tuple[Any] | None, int]:
    """((record,), where it ends) or, at the end of the array, (None, ...). ValueError: there is none at `begin`."""
    begin = SPACE.match(text, begin).end()
    if text[begin:begin + 1] == "]":
        return None, begin + 1
    if index:
        if text[begin:begin + 1] != ",":
            raise ValueError("expected ',' or ']' after a record")
        begin = SPACE.match(text, begin + 1).end()
    record, end = decoder.raw_decode(text, begin)
    return (record,), end


def _at_least(parts: Iterator[str], characters: int) -> Iterator[str]:
    for part in parts:
        yield part
        characters -= len(part)
        if characters <= 0:
            return
