"""Generated records of retrieval, seeded: the same for the same lengths, samples, seed and tokenizer.

passkey: a key of five digits in a text of nothing, asked for at its end (LoLCATs' tables 8, 21 and 23); the place goes through
the deciles. kv_recall: pairs of a name and a number, one is asked for. multi_query_recall: four are. phone_book: names of people
and telephone numbers in a list, one is asked for. Lengths are in tokens of the model's own tokenizer, prompt included. They are
the tasks of tasks/recall.py, and formats of a recipe's sources, whose file holds {"samples", "lengths", "seed"}; no sample of a
task is one of a source.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Callable, Iterator

from common import UsageError

LEAST_LENGTH = 64  # tokens: shorter ones have no room for the question

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NAMES = ("amber basil birch bramble briar cedar clover copper coral cotton crane daisy ember fennel fern finch flint garnet "
         "hazel heron holly iris ivory ivy jasper juniper lark laurel lilac linden maple marsh meadow moss myrtle nettle olive "
         "onyx opal otter pearl pepper pine plover poppy quartz raven reed robin rowan ruby saffron sage slate sorrel sparrow "
         "stone swan tansy thistle thrush topaz umber vetch violet walnut wheat willow wren yarrow").split()
FIRST = "Ada Ben Clara David Emma Felix Grace Henry Irene James Kate Louis Maria Nathan Olive Peter Ruth Samuel Tessa Victor".split()
LAST = ("Archer Baker Carter Dyer Ellis Fisher Gardner Hunter Ingram Joiner Keeper Leigh Mason Norris Osborne Parker Quinn "
        "Reeve Sawyer Turner").split()


def passkey_document(count: Callable[[str], int], length: int, depth: float, rng: random.Random) -> dict[str, Any]:
    key = str(rng.randrange(10000, 100000))
    head = "There is an important fact hidden in the text below. Find it and remember it.\n"
    fact = f"The pass key is {key}. Remember it. {key} is the pass key. "
    question = "\nWhat is the pass key? The pass key is"
    room = max(0, length - count(head + fact + question)) / count(FILLER)
    before = round(depth * room)
    after = max(0, int(room) - before)
    return {"prompt": head + FILLER * before + fact + FILLER * after + question, "answer": key, "length": length,
            "depth": round(depth, 2)}


def pairs_document(count: Callable[[str], int], length: int, questions: int, rng: random.Random) -> dict[str, Any]:
    def line(name: str, value: str) -> str:
        return f"{name} = {value}\n"
    head, seen = "Each name has a number.\n", {}
    lines: list[str] = []
    tokens = count(head) + 12 * questions
    while tokens < length or len(lines) < questions:
        name = f"{rng.choice(NAMES)}-{rng.choice(NAMES)}"
        if name in seen:
            continue
        seen[name] = str(rng.randrange(1000, 10000))
        lines.append(line(name, seen[name]))
        tokens += count(lines[-1])
    asked = rng.sample(sorted(seen), questions)
    answered = "".join(line(name, seen[name]) for name in asked[:-1])
    place = next(i for i, one in enumerate(lines) if one.startswith(asked[-1] + " "))
    return {"prompt": head + "".join(lines) + "Now the same numbers again.\n" + answered + f"{asked[-1]} =",
            "answer": seen[asked[-1]], "length": length, "depth": round(place / len(lines), 2)}


def phone_book_document(count: Callable[[str], int], length: int, rng: random.Random) -> dict[str, Any]:
    head, seen, lines = "Telephone book\n", {}, []
    tokens = count(head) + 20
    while (tokens < length or not lines) and len(seen) < len(FIRST) * len(LAST):
        name = f"{rng.choice(FIRST)} {rng.choice(LAST)}"
        if name in seen:
            continue
        seen[name] = f"{rng.randrange(100, 1000)}-{rng.randrange(1000, 10000)}"
        lines.append(f"{name}: {seen[name]}\n")
        tokens += count(lines[-1])
    asked = rng.choice(sorted(seen))
    place = next(i for i, one in enumerate(lines) if one.startswith(asked + ":"))
    return {"prompt": head + "".join(lines) + f"\nThe number of {asked} is", "answer": seen[asked], "length": length,
            "depth": round(place / len(lines), 2)}


MAKERS: dict[str, Callable[[Callable[[str], int], int, int, random.Random], dict]] = {
    "passkey": lambda count, length, index, rng: passkey_document(count, length, (index % 10 + 0.5) / 10, rng),
    "kv_recall": lambda count, length, index, rng: pairs_document(count, length, 1, rng),
    "multi_query_recall": lambda count, length, index, rng: pairs_document(count, length, 4, rng),
    "phone_book": lambda count, length, index, rng: phone_book_document(count, length, rng),
}


def records(name: str, count: Callable[[str], int], lengths: list[int], samples: int, seed: Any) -> Iterator[dict[str, Any]]:
    """`samples` of each length, the lengths in turn."""
    for index in range(samples):
        for length in lengths:
            yield MAKERS[name](count, length, index, random.Random(f"{seed}/{name}/{length}/{index}"))


def generated_records(path: Path, name: str, count: Callable[[str], int]) -> Iterator[dict[str, Any]]:
    """As the file of a source asks for them. UsageError for what is no such file."""
    how = f'write it as {{"samples": 200, "lengths": [256, 512], "seed": 0}}'
    try:
        asked = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; format \"{name}\" makes its records as a file says: {how}") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: expected JSON that says which records format \"{name}\" makes, found {error}; {how}") from None
    if not isinstance(asked, dict) or (unknown := sorted(set(asked) - {"samples", "lengths", "seed"})):
        found = f"the key '{unknown[0]}'" if isinstance(asked, dict) else type(asked).__name__
        raise UsageError(f"{path}: expected samples, lengths and seed, found {found}; {how}")
    samples, lengths, seed = asked.get("samples"), asked.get("lengths"), asked.get("seed", 0)
    is_number = lambda value, least: isinstance(value, int) and not isinstance(value, bool) and value >= least  # noqa: E731
    if not is_number(samples, 1):
        raise UsageError(f"{path}: samples: expected a number from 1 on, found {samples!r}; {how}")
    if not isinstance(lengths, list) or not lengths or not all(is_number(length, LEAST_LENGTH) for length in lengths):
        raise UsageError(f"{path}: lengths: expected numbers of tokens from {LEAST_LENGTH} on, found {lengths!r}; {how}")
    if not is_number(seed, 0):
        raise UsageError(f"{path}: seed: expected a number from 0 on, found {seed!r}; {how}")
    return records(name, count, lengths, samples, f"train {seed}")
