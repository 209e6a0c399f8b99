"""Documents to token sequences: greedy concatenation in order, cut every seq_len tokens, the rest dropped.

Documents are packed across each other without masking between them (as LoLCATs does); where each begins is recorded.
A document none of whose tokens counts as a target is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterator, Sequence

import numpy as np

from model_tokenizer import ModelTokenizer
from sources import Document

BATCH_DOCUMENTS = 512
BOUNDARIES = (re.compile(r"\n(?:[ \t\r]*\n)+"), re.compile(r"\n"), re.compile(r"[ \t]+"))  # paragraph, line, word


@dataclass(frozen=True)
class TokenizedDocument:
    ids: np.ndarray  # int32 [n]
    mask: np.ndarray  # uint8 [n]


def tokenize_documents(documents: Sequence[Document], tokenizer: ModelTokenizer, bos: int | None,
                       eos: int | None) -> Iterator[TokenizedDocument]:
    """One TokenizedDocument for each document, in order; batches go through the tokenizer's own threads."""
    for begin in range(0, len(documents), BATCH_DOCUMENTS):
        batch = documents[begin:begin + BATCH_DOCUMENTS]
        encodings = iter(tokenizer.encode_batch([piece for document in batch for piece in document.pieces]))
        for document in batch:
            yield _join(document, [next(encodings) for _ in document.pieces], bos, eos)


def _join(document: Document, encodings: list, bos: int | None, eos: int | None) -> TokenizedDocument:
    ids, masks = [], []
    if bos is not None:
        ids.append([bos])
        masks.append(np.full(1, document.answers is None, dtype=np.uint8))
    for number, encoding in enumerate(encodings):
        ids.append(encoding.ids)
        masks.append(_mask(document, number, encoding))
    if eos is not None and not document.own_end:
        ids.append([eos])
        # The end of text is part of the answer: a model that never learns it never stops.
        masks.append(np.ones(1, dtype=np.uint8))
    return TokenizedDocument(np.concatenate([np.asarray(i, dtype=np.int32) for i in ids]), np.concatenate(masks))


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
            starts[position] = 1
            position += len(document.ids)
        ids = np.concatenate([d.ids for d in self._documents]) if self._documents else np.zeros(0, np.int32)
        mask = np.concatenate([d.mask for d in self._documents]) if self._documents else np.zeros(0, np.uint8)
        return tuple(a[:used].reshape(rows, self._seq_len) for a in (ids, mask, starts))


def split_documents(documents: Sequence[Document], tokens: int, tokenizer: ModelTokenizer, bos: int | None,
                    eos: int | None) -> tuple[list[Document], list[Document]]:
    """(training, validation): the last documents that together hold at least `tokens` tokens are validation.

    Whole documents, so that no text is in both; a plain text too long for that is cut instead.
    """
    needed = tokens
    for index in range(len(documents) - 1, -1, -1):
        document = documents[index]
        whole = next(tokenize_documents([document], tokenizer, bos, eos))
        size = len(whole.ids) if whole.mask.any() else 0
        if size < needed:
            needed -= size
            continue
        if document.splittable and size > needed:
            parts = _cut_text(document, needed, tokenizer)
            if parts is not None:
                return [*documents[:index], parts[0]], [parts[1], *documents[index + 1:]]
        return list(documents[:index]), list(documents[index:])
    return [], list(documents)


def _cut_text(document: Document, tokens: int, tokenizer: ModelTokenizer) -> tuple[Document, Document] | None:
    """Cuts a plain text so that at least `tokens` tokens lie behind the cut, and at most twice as many.

    At the last paragraph that allows it, or else the last line, or else the last word.
    """
    text = "".join(document.pieces)
    offsets = [begin for begin, _ in tokenizer.encode_batch([text])[0].offsets]
    if tokens > len(offsets):
        return None
    earliest, latest = offsets[max(0, len(offsets) - 2 * tokens)], offsets[len(offsets) - tokens]
    for boundary in BOUNDARIES:
        cut = None
        for cut in boundary.finditer(text, max(1, earliest), latest):
            pass
        if cut is not None:
            head, tail = text[:cut.start()], text[cut.end():]
            return Document((head,), splittable=True), Document((tail,), splittable=True)
    return None
