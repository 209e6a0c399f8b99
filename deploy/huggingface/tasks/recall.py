"""The generated records of generated_records.py as tasks of lm-eval."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable

from generated_records import records


@lru_cache(maxsize=4)
def tokenizer_of(model: str):
    from model_tokenizer import auto_tokenizer
    return auto_tokenizer().from_pretrained(model)


def number_of_tokens(model: str) -> Callable[[str], int]:
    tokenizer = tokenizer_of(model)
    return lambda text: len(tokenizer.encode(text))


def documents(name: str, model: str, lengths: list[int], samples: int, seed: int) -> list[dict[str, Any]]:
    """`samples` of each length, the lengths in turn; the same for the same seed and tokenizer."""
    return list(records(name, number_of_tokens(model), lengths, samples, seed))


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
