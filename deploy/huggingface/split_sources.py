"""Where the text of a section's sources ends for training, and how much of it is read.

The held-out end is looked for from the end of the last source; training text is read from the beginning of each source, in
proportion to its weight, until the section has enough. So of a long file the beginning and the end are read, and no more.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from model_tokenizer import ModelTokenizer
from packing import CHARACTERS_PER_TOKEN, Ends, Packer, Split, cut_text, split_documents, split_tail, tokenize_documents
from reading import GZIP, PARQUET, ZSTD, Range, first_bytes, inner_suffix
from sources import TEXT_PIECE_CHARACTERS, Document, Source

# A shorter file is read to its end whatever is needed of it: that takes a second.
LEAST_SOUGHT_BYTES = 32 << 20
LEAST_TAIL_BYTES = 1 << 16
READ_CHARACTERS_PER_TOKEN = 8  # more than most text has: how far one reads ahead
Read = Callable[..., Iterator[Document]]  # (a Range or nothing, piece = characters of a text's fragments)


def size_of(source: Source) -> int:
    """Bytes of the file. UsageError for what is none."""
    first_bytes(source.path)
    return source.path.stat().st_size


def can_seek(source: Source) -> bool:
    """Whether the file's end can be read without its beginning: plain text, or JSON with an object a line.
    Not where records are folded: which begin a document is counted from the beginning."""
    if source.shots > 1 or size_of(source) < LEAST_SOUGHT_BYTES or first_bytes(source.path).startswith((GZIP, ZSTD, PARQUET)):
        return False
    suffix = inner_suffix(source.path)
    if source.path.suffix.lower() in (".gz", ".zst") or suffix in (".csv", ".tsv", ".parquet"):
        return False
    if source.format == "text":
        return True
    with source.path.open("rb") as file:
        line = file.readline(1 << 24)
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False


@dataclass(frozen=True)
class Part:
    """Of one source: how its training text is read, and what is held out."""

    training: Callable[..., Iterator[Document]]
    validation: list[Document]


def _boundary(source: Source, begin: int) -> int:
    """The first byte from `begin` on at which a text may be cut: behind a paragraph, or else a line; records behind a line."""
    if begin <= 0:
        return 0
    with source.path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    for mark in (b"\n\n", b"\n") if source.format == "text" else (b"\n",):
        if (found := data.find(mark)) >= 0 and found + len(mark) < len(data):
            return begin + found + len(mark)
    return 0


def _split_sought(source: Source, read: Read, tokens: int, tokenizer: ModelTokenizer) -> tuple[Part, int] | None:
    """(part, tokens still missing), by the file's end alone. None: it has to be read whole."""
    size, length = source.path.stat().st_size, max(LEAST_TAIL_BYTES, tokens * CHARACTERS_PER_TOKEN)
    while (begin := _boundary(source, size - length)) > 0:
        tail = list(read(Range(begin, size)))
        if source.format != "text":
            split = split_tail(1, tail, tokens, tokenizer)  # 1: there is more before it
            if split is not None:
                extra = tail[:split.num_train - 1] + ([split.head] if split.head is not None else [])
                return Part(lambda **how: _chained(read(Range(0, begin), **how), extra), split.validation), 0
        else:
            text = Document(("".join(piece for document in tail for piece in document.pieces),), splittable=True, begins=False)
            parts = cut_text(text, tokens, tokenizer, is_whole=False)
            if parts is not None:
                end = begin + len(parts[0].pieces[0].encode())
                return Part(functools.partial(read, Range(0, end)), [parts[1]]), 0
        length *= 8
    return None


def _chained(first: Iterator[Document], more: Sequence[Document]) -> Iterator[Document]:
    yield from first
    yield from more


def split_sources(sources: Sequence[Source], reads: Sequence[Read], tokens: int, tokenizer: ModelTokenizer) -> list[Part]:
    """The last `tokens` tokens of the list are held out, of its last source or of as many from the end as it takes."""
    parts: list[Part] = []
    for source, read in zip(reversed(sources), reversed(reads)):
        if tokens <= 0:
            parts.append(Part(read, []))
            continue
        found = _split_sought(source, read, tokens, tokenizer) if can_seek(source) else None
        if found is None:
            split = split_documents(read, tokens, tokenizer)
            held = tokens if split.num_train or split.head is not None else split.held_tokens
            found = Part(functools.partial(_training_of, read, split), split.validation), tokens - held
        parts.append(found[0])
        tokens = found[1]
    return parts[::-1]


def _training_of(read: Read, split: Split, **how: Any) -> Iterator[Document]:
    return split.training(read(**how))


class _Taken:
    """What was read of one source, packed into sequences."""

    def __init__(self, part: Part, seq_len: int, most: int, tokenizer: ModelTokenizer, ends: Ends):
        # No more is read ahead than all of them take; a text in smaller fragments would be cut at other places.
        ahead = min(most * seq_len * READ_CHARACTERS_PER_TOKEN, TEXT_PIECE_CHARACTERS) if most else None
        self._documents = tokenize_documents(part.training(piece=ahead), tokenizer, ends, ahead)
        self.packed, self.is_done = Packer(seq_len), False

    def up_to(self, sequences: int) -> None:
        """Reads until there are so many, or the source ends."""
        while not self.is_done and self.packed.num_sequences < sequences:
            document = next(self._documents, None)
            if document is None:
                self.is_done = True
            else:
                self.packed.add(document)


def _shares(weights: np.ndarray, count: int) -> np.ndarray:
    """`count` in whole parts as the weights are, the largest remainders rounded up."""
    exact = count * weights / weights.sum()
    whole = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[:count - whole.sum()]] += 1
    return whole


def pack_in_proportion(parts: Sequence[Part], sources: Sequence[Source], seq_len: int, limit: int, tokenizer: ModelTokenizer,
                       ends: Ends) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(input_ids, loss_mask, document_starts), each [sequences, seq_len]: of each source as many training sequences as its
    weight says (by default its file's bytes), `limit` in all, evenly among one another. Where a source has too few, the
    others give more."""
    weights = np.array([source.weight or max(1, size_of(source)) for source in sources], dtype=np.float64)
    quotas = _shares(weights, limit)
    taken = [_Taken(part, seq_len, int(quota), tokenizer, ends) for part, quota in zip(parts, quotas)]
    while True:
        for one, quota in zip(taken, quotas):
            one.up_to(int(quota))
        has = np.array([min(one.packed.num_sequences, quota) for one, quota in zip(taken, quotas)])
        more = np.array([not one.is_done for one in taken])
        if has.sum() >= limit or not more.any():
            break
        quotas = np.where(more, 0, has)
        quotas[more] = has[more] + _shares(weights[more], int(limit - has.sum()))
    # Sequence j of n stands at (j + 1/2) / n of the whole.
    at = np.concatenate([(np.arange(count) + 0.5) / max(count, 1) for count in has])
    order = np.argsort(at, kind="stable")
    packed = [one.packed.arrays(int(count)) for one, count in zip(taken, has) if count]
    return tuple(np.concatenate(arrays)[order] for arrays in zip(*packed)) if packed else Packer(seq_len).arrays()
