"""Reads data files a few megabytes at a time: as pieces of text, as lines, as the records of a file (tables: tables.py).

Nothing here holds more than one piece, line or record beside the few megabytes that were read last, but for a JSON object
at the beginning of a file: up to FIRST_VALUE_CHARACTERS of it.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import json
import re
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Callable, Iterator, NamedTuple

from common import UsageError, require_file
from tables import csv_records, names, optional_package, parquet_records

READ_BYTES = 4 << 20
ZSTD_BYTES = 1 << 16  # packed bytes at a time; they may unpack to a thousand times as many
FIRST_VALUE_CHARACTERS = 16 << 20  # how much of a file tells whether it is one object around a list of records
DECODER = json.JSONDecoder()
SPACE = re.compile(r"[ \t\r\n]*")
OnBytes = Callable[[int], None]


class Range(NamedTuple):
    """Bytes of a file of plain text or JSON lines, from and to a place where it may be cut."""

    begin: int
    end: int



GZIP, ZSTD, PARQUET, HDF5 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"\x89HDF"
FOREIGN = {b"PK\x03\x04": "a zip archive; unpack it", b"%PDF-": "a PDF; take its text out",
           b"BZh": "packed by bzip2; unpack it", b"\xfd7zXZ": "packed by xz; unpack it",
           b"ARROW1": "an Arrow file; write it as Parquet or JSON lines",
           HDF5: "an HDF5 file; a tokens file is read with format = \"tokens\""}
# Longer marks first: UTF-32's begins as UTF-16's does.
MARKS = ((codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"),
         (codecs.BOM_UTF16_BE, "UTF-16"))
# The keys of a record's turns: OpenAI's and TRL's, ShareGPT's, LMSYS-chat's.
TURNS = ("messages", "conversations", "conversation")


def first_bytes(path: Path, count: int = 8) -> bytes:
    """UsageError for what is no file."""
    try:
        with require_file(path).open("rb") as file:
            return file.read(count)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None


def kind(value: Any) -> str:
    """What a JSON value is, for people."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        text = repr(value) if isinstance(value, float) or abs(value) < 10**30 else "of more than 30 digits"
        return f"a number ({'NaN' if value != value else text})"
    return {str: "a string", list: "a list", dict: "an object", bytes: "bytes"}.get(type(value), type(value).__name__)


def read_parts(path: Path, on_bytes: OnBytes = lambda done: None, where: Range | None = None) -> Iterator[str]:
    """UTF-8 text, through gzip or zstd if the name ends in .gz or .zst or the file begins so. A byte order mark is dropped,
    CRLF stays.

    `on_bytes` hears how many bytes of the file (packed ones) were read so far. `where`: these bytes of an unpacked file.
    """
    position = where.begin if where else 0
    decoder = codecs.getincrementaldecoder("utf-8" if position else "utf-8-sig")()
    head = first_bytes(path)
    for magic, what in FOREIGN.items():
        if head.startswith(magic):
            raise UsageError(f"{path}: is {what}")
    try:
        with require_file(path).open("rb") as packed:
            packed.seek(position)
            blocks = _blocks(packed, where.end - position) if where else _zstd_blocks(path, packed) if path.suffix == ".zst" or head.startswith(ZSTD) else _blocks(
                gzip.GzipFile(fileobj=packed) if path.suffix == ".gz" or head.startswith(GZIP) else packed)
            for data in blocks:
                for mark, name in MARKS if not position else ():
                    if data.startswith(mark):
                        raise UsageError(f"{path}: is {name}, as its byte order mark says; convert the file "
                                         f"(iconv -f {name} -t UTF-8)")
                if (nul := data.find(b"\0")) >= 0:
                    raise UsageError(f"{path}: byte {position + nul} is NUL, which no text holds; convert the file if it is "
                                     "UTF-16 (iconv -f UTF-16LE -t UTF-8), or take the byte out")
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
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: damaged gzip file ({error})") from None


def _blocks(file: BinaryIO, most: int | None = None) -> Iterator[bytes]:
    """The file's bytes, `most` of them, and an empty block at the end."""
    while data := file.read(READ_BYTES if most is None else min(READ_BYTES, most)):
        most = None if most is None else most - len(data)
        yield data
    yield b""


def _zstd_blocks(path: Path, packed: BinaryIO) -> Iterator[bytes]:
    """Frame after frame; the package's own reader takes a file that was cut off for one that ends there."""
    zstandard = optional_package(path, "zstandard", "packed by zstd")
    frame = None
    try:
        while data := packed.read(ZSTD_BYTES):
            while data:
                # The Pile's kind of archive is packed with windows beyond the default's 128 MiB.
                frame = frame or zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()
                if unpacked := frame.decompress(data):
                    yield unpacked
                data = b""
                if frame.eof:
                    data, frame = frame.unused_data, None
    except zstandard.ZstdError as error:
        raise UsageError(f"{path}: damaged zstd file ({error})") from None
    if frame is not None:
        raise UsageError(f"{path}: damaged zstd file (it ends inside a frame)")
    yield b""


def inner_suffix(path: Path) -> str:
    """.jsonl of data.jsonl.gz; lower case."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in (".gz", ".zst"):
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def records_kind(path: Path) -> str:
    """"JSON", "CSV" or "Parquet" by the file's name and beginning; empty: plain text."""
    suffix = inner_suffix(path)
    if suffix == ".parquet" or first_bytes(path).startswith(PARQUET):
        return "Parquet"
    if suffix in (".csv", ".tsv"):
        return "CSV"
    return "JSON" if suffix in (".json", ".jsonl", ".ndjson") or _begins_json(read_parts(path)) else ""


def read_records(path: Path, on_bytes: OnBytes = lambda done: None) -> Iterator[tuple[str, dict]]:
    """(where, record) of a Parquet or CSV file by its name, or else of JSON by the first characters: an array, objects a
    line or one after another, or one object around a list of records."""
    suffix = inner_suffix(path)
    if suffix == ".parquet" or first_bytes(path).startswith(PARQUET):
        yield from parquet_records(path, on_bytes)
        return
    parts = read_parts(path, on_bytes)
    if suffix in (".csv", ".tsv"):
        yield from csv_records(path, _lines(parts), "\t" if suffix == ".tsv" else ",")
        return
    head = ""
    while not head.strip():
        part = next(parts, None)
        if part is None:
            return
        head += part
    first = head.lstrip()[0]
    if first == "[":
        yield from _array(path, head[head.index("[") + 1:], parts)
    elif first == "{":
        yield from _objects(path, head, parts)
    else:
        yield from _json_lines(path, itertools.chain([head], parts))


def read_lines(path: Path, on_bytes: OnBytes, where: Range) -> Iterator[tuple[str, dict]]:
    """(where, record) of JSON lines in these bytes."""
    return _json_lines(path, read_parts(path, on_bytes, where), f", behind byte {where.begin}, line " if where.begin else ":")


def check_record(where: str, record: Any) -> tuple[str, dict]:
    if not isinstance(record, dict):
        advice = "; write each string as a record, {\"text\": \"...\"} a line" if isinstance(record, str) else ""
        raise UsageError(f"{where}: expected a JSON object, found {kind(record)}{advice}")
    return where, record


def _decode(text: str, begin: int = 0) -> tuple[Any, int]:
    """(value, where it ends). ValueError also for what Python does not hold."""
    try:
        return DECODER.raw_decode(text, begin)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None


def _is_cut(error: ValueError, text: str) -> bool:
    """Whether more text may mend it: the error is where the text ends. A literal has up to 9 characters."""
    return isinstance(error, json.JSONDecodeError) and (
        error.msg.startswith("Unterminated string") or error.pos >= len(text) - 16)


def _json_lines(path: Path, parts: Iterator[str], mark: str = ":") -> Iterator[tuple[str, dict]]:
    for number, line in enumerate(_lines(parts), 1):
        if line.strip():
            try:
                record = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}{mark}{number}: not valid JSON: {error}") from None
            except RecursionError:
                raise UsageError(f"{path}{mark}{number}: values are nested too deeply") from None
            yield check_record(f"{path}{mark}{number}", record)


def _lines(parts: Iterator[str]) -> Iterator[str]:
    rest = ""
    for part in parts:
        *lines, rest = (rest + part).split("\n")
        yield from lines
    yield rest


def _objects(path: Path, text: str, parts: Iterator[str]) -> Iterator[tuple[str, dict]]:
    """Of a file that begins with an object."""
    begin = SPACE.match(text).end()
    while True:
        try:
            first, end = _decode(text, begin)
            break
        except ValueError as error:
            is_cut = _is_cut(error, text)
            more = "".join(_at_least(parts, len(text))) if is_cut and len(text) < FIRST_VALUE_CHARACTERS else ""
            if not more:
                if is_cut and len(text) >= FIRST_VALUE_CHARACTERS:
                    first, end = None, len(text)
                    break
                line = text.count("\n", 0, getattr(error, "pos", begin)) + 1
                raise UsageError(f"{path}:{line}: not valid JSON: {getattr(error, 'msg', error)}") from None
            text += more
    # JSON lines seldom end with the first, so this is a part or none.
    while first is not None and not text[end:].strip():
        part = next(parts, None)
        if part is None:
            yield from _only_object(path, text, begin, first)
            return
        text += part
    if first is None and (opening := _wrapper(text)):
        yield from _array(path, text[opening:], parts, closing="}")
    elif "\n" not in text[begin:end]:
        yield from _json_lines(path, itertools.chain([text], parts))
    else:
        yield from _pretty(path, text, parts)


def _only_object(path: Path, text: str, begin: int, value: dict) -> Iterator[tuple[str, dict]]:
    """A file that is one object: a record, or {"data": [records]}, or columns."""
    values = list(value.values())
    if len(value) == 1 and _is_wrapper(*next(iter(value.items()))):
        for index, record in enumerate(values[0]):
            yield check_record(f"{path}, record {index}", record)
        return
    columns = all(isinstance(v, dict) and v and all(key.isdigit() for key in v) for v in values) or all(
        isinstance(v, list) and v and len(v) == len(values[0]) and not any(isinstance(x, (dict, list)) for x in v)
        for v in values)
    if values and columns:
        raise UsageError(f"{path}: holds one JSON object of columns ({names(value)}), not records; write it record by "
                         "record, as pandas' to_json(path, orient=\"records\", lines=True) does")
    yield f"{path}:{text.count(chr(10), 0, begin) + 1}", value


def _is_wrapper(key: str, value: Any) -> bool:
    # A file of one record with its turns alone is no list of records.
    return key not in TURNS and isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def _wrapper(text: str) -> int:
    """Where the list of records begins in a long object that begins with one, else 0."""
    found = re.match(r'\s*\{\s*"((?:[^"\\]|\\.)*)"\s*:\s*\[(?=\s*\{)', text)
    return found.end() if found and found[1] not in TURNS else 0


def _pretty(path: Path, text: str, parts: Iterator[str]) -> Iterator[tuple[str, dict]]:
    """Objects one after another, each on as many lines as it likes."""
    begin, line = 0, 1
    while True:
        after = SPACE.match(text, begin).end()
        line += text.count("\n", begin, after)
        begin = after
        where = f"{path}:{line}"
        try:
            if begin == len(text):
                raise json.JSONDecodeError("Expecting value", text, begin)
            record, end = _decode(text, begin)
        except ValueError as error:
            more = "".join(_at_least(parts, len(text) - begin)) if _is_cut(error, text) else ""
            if not more and begin == len(text):
                return
            if not more:
                bad = line + text.count("\n", begin, getattr(error, "pos", begin))
                raise UsageError(f"{path}:{bad}: not valid JSON: {getattr(error, 'msg', error)}") from None
            text, begin = text[begin:] + more, 0
            continue
        yield check_record(where, record)
        line += text.count("\n", begin, end)
        begin = end


def _array(path: Path, text: str, parts: Iterator[str], closing: str = "") -> Iterator[tuple[str, dict]]:
    """The records of a JSON array whose text, after the bracket, begins with `text`. `closing` stands behind it."""
    begin = 0
    for index in itertools.count():
        where = f"{path}, record {index}"
        while True:
            try:
                record, end = _element(text, begin, index)
                break
            except ValueError as error:
                # It may only be cut off. At least as much again each time, so that a long record costs no square.
                more = "".join(_at_least(parts, len(text) - begin)) if _is_cut(error, text) else ""
                if not more:
                    raise UsageError(f"{where}: not valid JSON: {getattr(error, 'msg', error)}") from None
                text, begin = text[begin:] + more, 0
        begin = end
        if record is None:
            break
        yield check_record(where, record[0])
    rest = "".join(itertools.chain([text[begin:]], _at_least(parts, 1 << 10))).strip()
    if rest != closing or any(part.strip() for part in parts):
        raise UsageError(f"{path}: not valid JSON: text after the end of the array")


def _element(text: str, begin: int, index: int) -> tuple[tuple[Any] | None, int]:
    """((record,), where it ends) or, at the end of the array, (None, ...). ValueError: there is none at `begin`."""
    begin = SPACE.match(text, begin).end()
    if text[begin:begin + 1] == "]":
        return None, begin + 1
    if index:
        if begin == len(text):
            raise json.JSONDecodeError("expected ',' or ']' after a record", text, begin)
        if text[begin] != ",":
            raise ValueError("expected ',' or ']' after a record")
        begin = SPACE.match(text, begin + 1).end()
    record, end = _decode(text, begin)
    return (record,), end


def _at_least(parts: Iterator[str], characters: int) -> Iterator[str]:
    for part in parts:
        yield part
        characters -= len(part)
        if characters <= 0:
            return


def _begins_json(parts: Iterator[str]) -> bool:
    """Whether the text begins with a JSON object, or with an array whose first elements parse: prose may begin with a [1] or
    a {brace}, or go on behind what parses."""
    text = ""
    while not text.strip():
        part = next(parts, None)
        if part is None:
            return False
        text += part
    while text.lstrip()[0] in "[{":
        try:
            end = _first_elements(text)
        except ValueError as error:
            is_short = len(text) < FIRST_VALUE_CHARACTERS
            more = "".join(_at_least(parts, len(text))) if is_short and _is_cut(error, text) else ""
            if not more:
                return _is_cut(error, text) and (len(text) >= FIRST_VALUE_CHARACTERS or _begins_array(text))
            text += more
            continue
        if end is None:
            return True
        rest = text[end:] + "".join(_at_least(parts, 1 << 10))
        line = rest.split("\n", 1)[0].strip()
        return not line or line[0] == "{" == text.lstrip()[0]
    return False


def _begins_array(text: str) -> bool:
    """Whether the first element of an array that was cut off is whole."""
    try:
        return text.lstrip()[0] == "[" and _first_elements(text, 1) is None
    except ValueError:
        return False


def _first_elements(text: str, most: int = 3) -> int | None:
    """Where the first value ends; None: it is an array of which `most` elements parse. ValueError: it is no JSON, or cut."""
    begin = SPACE.match(text).end()
    if text[begin] == "{":
        value, end = _decode(text, begin)
        if not value:
            raise ValueError("nothing in it")
        return end
    begin += 1
    for index in range(most):
        element, begin = _element(text, begin, index)
        if element is None and not index:
            raise ValueError("nothing in it")
        if element and isinstance(element[0], (int, float, type(None))):
            # A list of numbers alone on a line, but no footnote's.
            value, end = _decode(text, SPACE.match(text).end())
            if len(value) > 1:
                return end
            raise ValueError("one number")
        if element is None:
            return begin
    return None
