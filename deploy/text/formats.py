"""Files of Debian packages as strings: SWORD modules, dictd dictionaries, R's data files, WordNet's, fortune's.

Nothing here knows what the text is about; markup is left in (markup.py takes it out). A file that is not in its format
raises ValueError, which the caller turns into the name of the package.
"""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path
from typing import Iterator

_BASE64 = {letter: value for value, letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}


def read_text(path: Path) -> str:
    """A text file, unpacked where it is gzip's; what is not UTF-8 is Latin-1."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path.name} is not a whole gzip file: {error}") from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def read_zcom(base: Path, extension: str) -> list[str]:
    """The blocks of one testament of a SWORD zCom module, in order: `base` is .../ot, `extension` .bz or .cz.

    The index (*.bzs) holds records of three little-endian 32-bit numbers: offset, packed size, size; the data (*.bzz) one
    zlib stream for each.
    """
    index = Path(f"{base}{extension}s").read_bytes()
    data = Path(f"{base}{extension}z").read_bytes()
    if len(index) % 12:
        raise ValueError(f"{base.name}{extension}s is no zCom index: {len(index)} bytes are no multiple of 12")
    blocks = []
    for at, packed, size in struct.iter_unpack("<III", index):
        try:
            block = zlib.decompress(data[at:at + packed])
        except zlib.error as error:
            raise ValueError(f"{base.name}{extension}z at byte {at}: {error}") from error
        if len(block) != size:
            raise ValueError(f"{base.name}{extension}z at byte {at}: {len(block)} bytes, the index says {size}")
        blocks.append(block.decode("utf-8", "replace"))
    return blocks


def read_dictd(dictionary: Path, index: Path) -> list[tuple[str, str]]:
    """(headword, entry) of a dictd dictionary, in the order of the file. Index: headword, offset, length in base 64."""
    text = gzip.decompress(dictionary.read_bytes())
    places: dict[tuple[int, int], str] = {}
    for line in index.read_text("utf-8", "replace").splitlines():
        fields = line.split("\t")
        if len(fields) < 3:
            raise ValueError(f"{index.name} has a line without offset and length: {line[:60]!r}")
        places.setdefault((_number(fields[1]), _number(fields[2])), fields[0])
    return [(word, text[at:at + size].decode("utf-8", "replace")) for (at, size), word in sorted(places.items())]


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        if digit not in _BASE64:
            raise ValueError(f"{digits!r} is no number of a dictd index")
        value = value * 64 + _BASE64[digit]
    return value


def read_rdb(path: Path) -> list[list[str]]:
    """The character vectors of an R lazy-load database: a 4-byte big-endian size and a zlib stream for each object."""
    data, at, vectors = path.read_bytes(), 0, []
    while at < len(data):
        try:
            stream = zlib.decompressobj()
            content = stream.decompress(data[at + 4:])
        except zlib.error as error:
            raise ValueError(f"{path.name} at byte {at}: {error}") from error
        if not stream.eof:
            raise ValueError(f"{path.name} ends inside the object at byte {at}")
        at = len(data) - len(stream.unused_data)
        vector = _character_vector(content)
        if vector is not None:
            vectors.append(vector)
    return vectors


def _character_vector(content: bytes) -> list[str] | None:
    """R's serialization, version 3, binary (XDR): a header with the encoding's name, then one STRSXP (type 16)."""
    if content[:2] != b"X\n" or struct.unpack_from(">i", content, 2)[0] != 3:
        return None
    at = 2 + 12
    at += 4 + struct.unpack_from(">i", content, at)[0]
    kind, length = struct.unpack_from(">ii", content, at)
    if kind & 0xFF != 16:
        return None
    at, strings = at + 8, []
    for _ in range(length):
        size = struct.unpack_from(">i", content, at + 4)[0]
        at += 8
        strings.append(content[at:at + max(size, 0)].decode("utf-8", "replace"))
        at += max(size, 0)
    return strings


def read_wordnet(path: Path) -> Iterator[tuple[list[str], str]]:
    """(words, gloss) of each synset of a data.* file: offset, file, type, number of words in hex, words, ... | gloss."""
    for line in path.read_text("utf-8", "replace").splitlines():
        if line.startswith("  "):  # the licence, numbered
            continue
        fields, _, gloss = line.partition(" | ")
        fields = fields.split()
        if len(fields) < 6 or not gloss:
            raise ValueError(f"{path.name} has a line that is no synset: {line[:60]!r}")
        words = fields[4:4 + 2 * int(fields[3], 16):2]
        yield [re.sub(r"\((a|p|ip)\)$", "", word).replace("_", " ") for word in words], gloss.strip()


def read_fortunes(path: Path) -> list[str]:
    """The cookies of a fortune file: separated by lines of one percent sign."""
    return [cookie.strip("\n") for cookie in re.split(r"^%\n", read_text(path), flags=re.MULTILINE) if cookie.strip()]
