"""From documents to one mixed text: what is left out of them, pieces, shares, order.

Everything is a function of its input; there is no random number. Sizes are bytes of UTF-8; a token is BYTES_PER_TOKEN of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterable

BYTES_PER_TOKEN = 4.25  # SmolLM2's tokenizer: 4.29 of the whole mixture, 3.8 (aphorisms) to 4.6 (treatise) of a kind
_WINDOW, _STRIDE = 8, 6  # words; a run of 13 words that a held-out text shares is always found
_GOLDEN = 0.6180339887498949
_NOTICE = re.compile(r"WITHOUT ANY WARRANTY|[Pp]ermission is (hereby )?granted|free software[;:,] you can redistribute|"
                     r"redistribute (it|them|this \w+) and/or modify|under the same terms as Perl|General Public License as published")


@dataclass
class Filter:
    """Leaves out notices of licences, pictures made of signs, long paragraphs that came before, and what a held-out text says too."""

    held_out: set[str]
    seen: set[str] = field(default_factory=set)
    dropped: dict[str, int] = field(default_factory=lambda: {"notice": 0, "signs": 0, "repeated": 0, "held_out": 0})

    def clean(self, document: str) -> str:
        kept = []
        paragraphs = _without_control(document).split("\n\n")
        shared = self._shared(paragraphs)
        for index, paragraph in enumerate(paragraphs):
            reason = "held_out" if index in shared else self._reason(paragraph)
            if reason:
                self.dropped[reason] += len(paragraph.encode())
            elif paragraph.strip():
                kept.append(paragraph.rstrip())
        return "\n\n".join(kept)

    def _reason(self, paragraph: str) -> str | None:
        if _NOTICE.search(paragraph):
            return "notice"
        letters, signs = sum(map(str.isalpha, paragraph)), len(paragraph) - sum(map(str.isspace, paragraph))
        if letters == 0 and not paragraph.strip().isdigit() or signs >= 40 and letters < signs / 2:
            return "signs"
        if len(paragraph) >= 120:
            if paragraph in self.seen:
                return "repeated"
            self.seen.add(paragraph)
        return None

    def _shared(self, paragraphs: list[str]) -> set[int]:
        """Which of them hold a run of words of a held-out text, also one that begins in the paragraph before."""
        words, owner = [], []
        for index, paragraph in enumerate(paragraphs):
            found = words_of(paragraph)
            words += found
            owner += [index] * len(found)
        shared: set[int] = set()
        for at in range(0, len(words) - _WINDOW + 1, _STRIDE):
            if " ".join(words[at:at + _WINDOW]) in self.held_out:
                shared.update(owner[at:at + _WINDOW])
        return shared


def _without_control(text: str) -> str:
    """Without overstrikes (a sign and a backspace), control characters and soft hyphens."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\ufeff\ufffd]", "", re.sub(r".\x08", "", text).replace("\xa0", " ").replace("\t", "    "))


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def windows(texts: Iterable[str]) -> set[str]:
    """Every run of _WINDOW words of the texts."""
    found = set()
    for text in texts:
        words = words_of(text)
        found.update(" ".join(words[at:at + _WINDOW]) for at in range(len(words) - _WINDOW + 1))
    return found


def size(text: str) -> int:
    return len(text.encode())


def spread(count: int) -> list[int]:
    """0 .. count-1 in an order of which every beginning covers the whole evenly (multiples of the golden ratio)."""
    return sorted(range(count), key=lambda index: ((index + 1) * _GOLDEN) % 1.0)


def evenly(documents: list[str], most: int) -> list[str]:
    """Documents from all over the list, in its order, which together have at most that many bytes."""
    chosen, total = [], 0
    for index in spread(len(documents)):
        total += size(documents[index]) + 2
        if total > most:
            break
        chosen.append(index)
    return [documents[index] for index in sorted(chosen)]


def pieces(documents: list[str], target: int) -> list[str]:
    """Runs of whole paragraphs of about `target` bytes; several short documents make one piece."""
    made, held, held_size = [], [], 0
    for document in documents:
        for paragraph in document.split("\n\n"):
            if held and held_size + size(paragraph) > 1.25 * target:
                made.append("\n\n".join(held))
                held, held_size = [], 0
            held.append(paragraph)
            held_size += size(paragraph) + 2
        if held_size >= target / 2:
            made.append("\n\n".join(held))
            held, held_size = [], 0
    return [*made, "\n\n".join(held)] if held else made


def amounts(available: dict[str, int], shares: dict[str, float], most: int | None) -> dict[str, float]:
    """Bytes of each kind: by the shares, and where a kind has less, all of it while the others make up for it by their shares."""
    if most is None or most >= sum(available.values()):
        return {name: float(bytes_) for name, bytes_ in available.items()}
    given: dict[str, float] = {}
    open_ = {name for name in available if shares[name] > 0}
    while open_:
        level = (most - sum(given.values())) / sum(shares[name] for name in open_)
        short = {name for name in open_ if available[name] < level * shares[name]}
        given.update({name: float(available[name]) for name in short} if short else {name: level * shares[name] for name in open_})
        open_ -= short or open_
    return given


def interleave(kinds: dict[str, list[str]], shares: dict[str, float], most: int | None) -> list[tuple[str, str]]:
    """(kind, piece), always of the kind that lags most behind its amount: every beginning is mixed as the whole is.

    `most` bytes, or None for all there is.
    """
    orders = {name: [made[index] for index in spread(len(made))] for name, made in kinds.items()}
    wanted = amounts({name: sum(size(piece) + 2 for piece in made) for name, made in kinds.items()}, shares, most)
    used = {name: 0 for name in kinds}
    position = {name: 0 for name in kinds}
    mixed, total = [], 0
    while most is None or total < most:
        left = [name for name in wanted if position[name] < len(orders[name])]
        if not left:
            break
        name = min(left, key=lambda name: used[name] / wanted[name])
        piece = orders[name][position[name]]
        position[name] += 1
        if most is not None and total + size(piece) + 2 > most:
            piece = _beginning(piece, most - total)
            total = most  # the end, whether something fitted or not
        if piece:
            mixed.append((name, piece))
            used[name] += size(piece) + 2
            total += size(piece) + 2
    return mixed


def _beginning(piece: str, most: int) -> str:
    """As many whole paragraphs as fit."""
    kept = []
    for paragraph in piece.split("\n\n"):
        most -= size(paragraph) + 2
        if most < 0:
            break
        kept.append(paragraph)
    return "\n\n".join(kept)
