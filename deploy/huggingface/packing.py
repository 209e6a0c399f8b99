"""Documents to token sequences: greedy concatenation in order, cut every seq_len tokens, the rest dropped.

Documents are packed across each other without masking between them (as LoLCATs does); where each begins is recorded.
A document none of whose tokens counts as a target is left out.
"""

from __future__ import annotations

import collections
import itertools
import re
from dataclasses import dataclass, replace
from typing import Callable, Iterable, Iterator, Sequence

import numpy as np

from model_tokenizer import ModelTokenizer
from sources import Document

BATCH_DOCUMENTS = 512
BATCH_CHARACTERS = 16 << 20
CHARACTERS_PER_TOKEN = 16  # more than text has: how far back to look for held-out text at first
BOUNDARIES = (re.compile(r"\n(?:[ \t\r]*\n)+"), re.compile(r"\n"), re.compile(r"[ \t]+"))  # paragraph, line, word


@dataclass(frozen=True)
class TokenizedDocument:
    ids: np.ndarray  # int32 [n]
    mask: np.ndarray  # uint8 [n]
    begins: bool = True


@dataclass(frozen=True)
class Ends:
    """What is put around a document: ids before it, an id after it (None: nothing). A chat's template says what begins and
    ends it; `of_chats`: the ids stand before those too, unless the template has put them there."""

    begin: Sequence[int] = ()
    of_chats: bool = False
    eos: int | None = None


def tokenize_documents(documents: Iterable[Document], tokenizer: ModelTokenizer, ends: Ends,
                       ahead: int | None = None) -> Iterator[TokenizedDocument]:
    """One TokenizedDocument for each document, in order; batches go through the tokenizer's own threads. `ahead`: how many
    characters may be read before they are asked for, at most."""
    for batch in _batches(documents, min(ahead or BATCH_CHARACTERS, BATCH_CHARACTERS)):
        encodings = iter(tokenizer.encode_batch([piece for document in batch for piece in document.pieces]))
        for document in batch:
            yield _join(document, [next(encodings) for _ in document.pieces], ends)


def _batches(documents: Iterable[Document], most: int) -> Iterator[list[Document]]:
    """An encoding takes some hundred bytes for each token, so a batch is bounded by characters too."""
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += sum(len(piece) for piece in document.pieces)
        if len(batch) == BATCH_DOCUMENTS or characters >= most:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _join(document: Document, encodings: list, ends: Ends) -> TokenizedDocument:
    ids, masks = [], []
    begin = list(ends.begin)
    if document.own_end and not (ends.of_chats and encodings[0].ids[:len(begin)] != begin):
        begin = []
    if begin and document.begins:
        ids.append(begin)
        masks.append(np.full(len(begin), document.answers is None, dtype=np.uint8))
    for number, encoding in enumerate(encodings):
        ids.append(encoding.ids)
        masks.append(_mask(document, number, encoding))
    if ends.eos is not None and document.ends and not document.own_end:
        ids.append([ends.eos])
        # The end of text is part of the answer: a model that never learns it never stops.
        masks.append(np.ones(1, dtype=np.uint8))
    return TokenizedDocument(np.concatenate([np.asarray(i, dtype=np.int32) for i in ids]), np.concatenate(masks), document.begins)


def _mask(document: Document, piece: int, encoding) -> np.ndarray:
    """uint8 [n]: 1 for tokens that lie in an answer, with any part of them."""
    if document.answers is None:
        return np.ones(len(encoding.ids), dtype=np.uint8)
    mask = np.zeros(len(encoding.ids), dtype=np.uint8)
    offsets = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    for number, begin, end in document.answers:
        if number == piece:
            mask |= ((offsets[:, 1] > begin) & (offsets[:, 0] < end)).astype(np.uint8)
    return mask


class Packer:
    """Collects documents into rows of seq_len."""

    def __init__(self, seq_len: int):
        self._seq_len = seq_len
        self._documents: list[TokenizedDocument] = []
        self._tokens = 0

    def add(self, document: TokenizedDocument) -> None:
        if document.mask.any():
            self._documents.append(document)
            self._tokens += len(document.ids)

    @property
    def num_sequences(self) -> int:
        return self._tokens // self._seq_len

    def arrays(self, limit: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(input_ids, loss_mask, document_starts), each [sequences, seq_len]; at most `limit` rows if it is not 0."""
        rows = self.num_sequences if not limit else min(limit, self.num_sequences)
        used = rows * self._seq_len
        starts = np.zeros(self._tokens, dtype=np.uint8)
        position = 0
        for document in self._documents:
            starts[position] = document.begins
            position += len(document.ids)
        ids = np.concatenate([d.ids for d in self._documents]) if self._documents else np.zeros(0, np.int32)
        mask = np.concatenate([d.mask for d in self._documents]) if self._documents else np.zeros(0, np.uint8)
        return tuple(a[:used].reshape(rows, self._seq_len) for a in (ids, mask, starts))


@dataclass(frozen=True)
class Split:
    """Where training ends: `num_train` whole documents, then `head`, if one was cut. The rest is validation."""

    num_train: int
    head: Document | None
    validation: list[Document]
    cuts_between_fragments: bool = False
    held_tokens: int = 0  # of validation, where that is all there is

    def training(self, documents: Iterable[Document]) -> Iterator[Document]:
        for index, document in enumerate(itertools.islice(documents, self.num_train)):
            last = index == self.num_train - 1 and self.cuts_between_fragments
            yield replace(document, ends=True) if last else document
        if self.head is not None:
            yield self.head


def split_documents(read: Callable[[], Iterable[Document]], tokens: int, tokenizer: ModelTokenizer) -> Split:
    """The last documents that together hold at least `tokens` tokens are validation.

    Whole documents, so that no text is in both; a plain text too long for that is cut instead. BOS and EOS do not count,
    nor which tokens are targets: stages that treat the same documents differently cut them at the same place. `read` may
    be called more than once: what is kept is the end that may be needed, not the text.
    """
    most = max(1, tokens * CHARACTERS_PER_TOKEN)
    while True:
        first, tail = _tail(read(), most)
        split = split_tail(first, tail, tokens, tokenizer)
        if split is not None:
            return split
        most *= 8


def _tail(documents: Iterable[Document], characters: int) -> tuple[int, list[Document]]:
    """(number of documents before it, the last documents that hold that many characters)."""
    tail, sizes, held, first = collections.deque(), collections.deque(), 0, 0
    for document in documents:
        tail.append(document)
        sizes.append(sum(len(piece) for piece in document.pieces))
        held += sizes[-1]
        while held - sizes[0] >= characters:
            held -= sizes.popleft()
            tail.popleft()
            first += 1
    return first, list(tail)


def split_tail(first: int, tail: list[Document], tokens: int, tokenizer: ModelTokenizer) -> Split | None:
    """None: the tail does not hold enough, and there is more before it."""
    needed = tokens
    for index in range(len(tail) - 1, -1, -1):
        document = tail[index]
        size = sum(len(encoding.ids) for encoding in tokenizer.encode_batch(list(document.pieces)))
        if size < needed:
            needed -= size
            continue
        if document.splittable and size > needed:
            parts = cut_text(document, needed, tokenizer)
            if parts is not None:
                return Split(first + index, parts[0], [parts[1], *tail[index + 1:]])
        validation = [replace(document, begins=True), *tail[index + 1:]]
        return Split(first + index, None, validation, cuts_between_fragments=not document.begins)
    return None if first else Split(0, None, tail, held_tokens=tokens - needed)


def cut_text(document: Document, tokens: int, tokenizer: ModelTokenizer,
             is_whole: bool = True) -> tuple[Document, Document] | None:
    """Cuts a plain text so that at least `tokens` tokens lie behind the cut, and at most twice as many.

    At the last paragraph that allows it, or else the last line, or else the last word. None where that cannot be; of the end
    of a text that goes on before it (not `is_whole`) also where the whole text might be cut elsewhere.
    """
    text = "".join(document.pieces)
    offsets = [begin for begin, _ in tokenizer.encode_batch([text])[0].offsets]
    if tokens > len(offsets) or (not is_whole and 2 * tokens > len(offsets)):
        return None
    earliest, latest = offsets[max(0, len(offsets) - 2 * tokens)], offsets[len(offsets) - tokens]
    for boundary in BOUNDARIES:
        cut = None
        for cut in boundary.finditer(text, max(1, earliest), latest):
            pass
        if cut is not None:
            head, tail = text[:cut.start()], text[cut.end():]
            return (Document((head,), splittable=True, begins=document.begins),
                    Document((tail,), splittable=True, ends=document.ends))
    return None
