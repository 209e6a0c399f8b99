"""Generated tasks of retrieval, seeded: the same documents for the same lengths, samples and seed with any tokenizer's text.

passkey: a key of five digits in a text of nothing, asked for at its end (as LoLCATs' table 8); the place goes through the
deciles. kv_recall: pairs of a name and a number, one is asked for. multi_query_recall: four are. phone_book: names of people
and telephone numbers in a list, one is asked for. Lengths are in tokens of the model's own tokenizer, prompt included.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any, Callable

FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again. "
NAMES = ("amber basil birch bramble briar cedar clover copper coral cotton crane daisy ember fennel fern finch flint garnet "
         "hazel heron holly iris ivory ivy jasper juniper lark laurel lilac linden maple marsh meadow moss myrtle nettle olive "
         "onyx opal otter pearl pepper pine plover poppy quartz raven reed robin rowan ruby saffron sage slate sorrel sparrow "
         "stone swan tansy thistle thrush topaz umber vetch violet walnut wheat willow wren yarrow").split()
FIRST = "Ada Ben Clara David Emma Felix Grace Henry Irene James Kate Louis Maria Nathan Olive Peter Ruth Samuel Tessa Victor".split()
LAST = ("Archer Baker Carter Dyer Ellis Fisher Gardner Hunter Ingram Joiner Keeper Leigh Mason Norris Osborne Parker Quinn "
        "Reeve Sawyer Turner").split()


@lru_cache(maxsize=4)
def tokenizer_of(model: str):
    from model_tokenizer import auto_tokenizer
    return auto_tokenizer().from_pretrained(model)


def number_of_tokens(model: str) -> Callable[[str], int]:
    tokenizer = tokenizer_of(model)
    return lambda text: len(tokenizer.encode(text))


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


def documents(name: str, model: str, lengths: list[int], samples: int, seed: int) -> list[dict[str, Any]]:
    """`samples` of each length, the lengths in turn; the same for the same seed and tokenizer."""
    count = number_of_tokens(model)
    return [MAKERS[name](count, length, index, random.Random(f"{seed}/{name}/{length}/{index}"))
            for index in range(samples) for length in lengths]


def config(name: str, model: str, lengths: list[int], samples: int, seed: int) -> dict[str, Any]:
    """As lm-eval takes a task."""
    import datasets
    return {"task": name, "output_type": "generate_until", "test_split": "test", "doc_to_text": "{{prompt}}",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(documents(name, model, lengths, samples, seed))},
            "doc_to_target": "{{answer}}", "process_results": exact,
            "generation_kwargs": {"until": ["\n"], "max_gen_toks": 12, "do_sample": False},
            "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
            "metadata": {"version": 1.0}}


def exact(document: dict, answers: list[str]) -> dict[str, float]:
    """1 where the answer begins with what was asked for."""
    answer = answers[0][0] if isinstance(answers[0], list) else answers[0]
    return {"exact_match": float(answer.strip().startswith(document["answer"]))}
