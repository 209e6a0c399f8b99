"""What an exact cache of keys is worth: recall behind the window, and perplexity, beside windows of equal bytes.

A student is an export in plain PyTorch, fp32 on the CPU, as are the teacher and the untrained windows (the teacher's weights
under a mask). A key is recalled where greedy decoding says it whole: each of its tokens is the likeliest after those before it,
which one forward of the prompt and the key tells.
"""

from __future__ import annotations

import functools
import gzip
import json
import math
import os
import random
import re
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Iterator
from unittest import mock

from bench_common import Context, Row, Skip, against, require_packages

# Tokens of a prompt, and how many of each kind of task.
TASKS = {768: 8, 2048: 8, 4096: 4}
# Tokens of a sequence, and how many of each text.
TEXTS = {512: 8, 2048: 4}
KEY_BYTES, POSITION_BYTES = 2, 8


@dataclass
class Attention:
    """A student's, as config.json says it."""

    window_size: int
    num_sinks: int
    feature_dim: int
    kv_heads: int
    head_dim: int
    key_maps: int

    def bytes_of_layer(self, recall: int, sum_bytes: int) -> int:
        """As storage/shape/state_bytes: a terraced ring, sinks, cache, S and z."""
        pair = 2 * self.kv_heads * self.head_dim * KEY_BYTES
        keys = (2 * self.window_size + self.num_sinks + recall) * pair + recall * self.kv_heads * POSITION_BYTES
        return keys + self.key_maps * self.feature_dim * (self.head_dim + 1) * sum_bytes

    def equal_window(self, recall: int, sum_bytes: int) -> int:
        pair = 2 * self.kv_heads * self.head_dim * KEY_BYTES
        return math.ceil((self.bytes_of_layer(recall, sum_bytes) - self.num_sinks * pair) / (2 * pair))


@dataclass
class Subject:
    name: str
    logits: Callable[[Any], Any]  # input_ids [1, T] -> [T, V]
    bytes_of_layer: int | None
    found: dict[str, float] = field(default_factory=dict)


def text_of(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix in (".gz", ".dz") else data).decode("utf-8", "replace")


def passkey(rng: random.Random) -> tuple[str, str, str]:
    """What is hidden, the question, the answer."""
    key = str(rng.randrange(10000, 100000))
    return f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n", "\n\nWhat is the pass key? The pass key is", f" {key}"


def pair_of_many(rng: random.Random) -> tuple[str, str, str]:
    names = ["apple", "river", "candle", "window", "garden", "silver", "thunder", "copper", "violet", "harbor"]
    rng.shuffle(names)
    values = {name: str(rng.randrange(100, 1000)) for name in names[:6]}
    asked = rng.choice(sorted(values))
    lines = "".join(f"The number of {name} is {value}.\n" for name, value in values.items())
    return f"\n\n{lines}\n", f"\n\nThe number of {asked} is", f" {values[asked]}"


def make_tasks(tokenizer: Any, filler: list[int], length: int, count: int, make: Callable) -> list[tuple[list[int], int]]:
    """Prompts of `length` tokens with the answer's tokens behind them, and how many those are; the same for every subject."""
    tasks = []
    for index in range(count):
        rng = random.Random(f"{make.__name__} {length} {index}")
        hidden, question, answer = (tokenizer(text, add_special_tokens=False).input_ids for text in make(rng))
        room = length - len(hidden) - len(question)
        first = rng.randrange(0, len(filler) - room)
        # Never in the sinks, nor in the last window, where everybody sees it.
        at = rng.randrange(room // 10, room * 7 // 10)
        prose = filler[first:first + room]
        tasks.append((prose[:at] + hidden + prose[at:] + question + answer, len(answer)))
    return tasks


class Bench:
    def __init__(self, context: Context, run: Path):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        self.torch, self.context = torch, context
        torch.set_num_threads(os.cpu_count() or 1)
        export = context.work / "recall-export"
        shutil.rmtree(export, ignore_errors=True)
        done = subprocess.run([context.program("hedgerow"), "export", "--run", run, "--out", export, "--recall-cache", "0"],
                              capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"hedgerow export --run {run} exits {done.returncode}: {done.stderr.strip()[-500:]}")
        self.tokenizer = AutoTokenizer.from_pretrained(context.model())
        self.teacher = AutoModelForCausalLM.from_pretrained(context.model(), dtype=torch.float32).eval()
        with mock.patch.dict(os.environ, HEDGEROW_OPS="off"):  # recency and rounding are Python's here
            self.student = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, trust_remote_code=True).eval()
        config = self.student.config
        spec = config.attention
        if spec["window"] != "terraced":
            raise Skip(f"the run's window is {spec['window']}; windows of equal bytes are those of a terraced one here")
        self.attention = Attention(spec["window_size"], spec["num_sinks"], spec["feature_dim"], config.num_key_value_heads,
                                   config.head_dim, config.num_key_maps)

    def of_teacher(self, window: int | None) -> Callable:
        @functools.lru_cache(maxsize=2)
        def mask_of(length: int):
            torch = self.torch
            i, j = torch.arange(length)[:, None], torch.arange(length)[None]
            seen = (j <= i) & ((j // window >= i // window - 1) | (j < self.attention.num_sinks))
            return torch.zeros(length, length).masked_fill(~seen, float("-inf"))[None, None]

        def logits(ids):
            keywords = {} if window is None else {"attention_mask": mask_of(ids.shape[1])}
            return self.teacher(ids, use_cache=False, **keywords).logits[0]
        return logits

    @contextmanager
    def cache_of(self, keys: int, by_recency: bool, is_rounded: bool) -> Iterator[None]:
        """The student's layers with so many recalled keys; the most recent, or a state that is rounded to bf16 after each sum."""
        layers = [layer.self_attn for layer in self.student.model.layers if not layer.self_attn.softmax]
        owner = next(one for one in type(layers[0]).__mro__ if "_add_features" in vars(one))
        add = owner._add_features

        def rounding(state, phi, v):
            add(state, phi, v)
            state.kv, state.k = state.kv.bfloat16().float(), state.k.bfloat16().float()

        def recency(_self, _state, _phi, _v, positions):
            return positions.float()
        with ExitStack() as changed:
            for layer in layers:
                changed.enter_context(mock.patch.object(layer, "recall_cache", keys))
            if by_recency:
                changed.enter_context(mock.patch.object(owner, "_scores", recency))
            if is_rounded:
                changed.enter_context(mock.patch.object(owner, "_add_features", staticmethod(rounding)))
            yield

    def of_student(self, keys: int = 0, by_recency: bool = False, is_rounded: bool = False) -> Callable:
        def logits(ids):
            with self.cache_of(keys, by_recency, is_rounded):
                return self.student(ids, use_cache=False).logits[0]
        return logits

    def subjects(self) -> list[Subject]:
        attention, most = self.attention, self.attention.window_size
        found = [Subject("teacher", self.of_teacher(None), None),
                 Subject(f"control: window of {most}", self.of_teacher(most),
                         (2 * most + attention.num_sinks) * 4 * attention.kv_heads * attention.head_dim)]
        # A window for each size of state that stands beside it: of no cache in fp32 and of a full one in bf16, and in fp32.
        for window in sorted({attention.equal_window(0, 4), attention.equal_window(most, 2), attention.equal_window(most, 4)}):
            found.append(Subject(f"window of {window}", self.of_teacher(window),
                                 (2 * window + attention.num_sinks) * 4 * attention.kv_heads * attention.head_dim))
        found.append(Subject("student", self.of_student(), attention.bytes_of_layer(0, 4)))
        for keys in sorted({most // 2, most}):
            for word, by_recency in (("by recency", True), ("by residual", False)):
                found.append(Subject(f"student, {keys} keys {word}", self.of_student(keys, by_recency),
                                     attention.bytes_of_layer(keys, 4)))
        found.append(Subject(f"student, {most} keys by residual, bf16 sums", self.of_student(most, False, True),
                             attention.bytes_of_layer(most, 2)))
        return found

    def losses(self, subject: Subject, ids: list[int], last: int) -> tuple[float, bool]:
        """Mean negative log-likelihood of the last tokens, and whether each is the likeliest."""
        torch = self.torch
        with torch.inference_mode():
            logits = subject.logits(torch.tensor([ids]))[-last - 1:-1].float()
        targets = torch.tensor(ids[-last:])
        nll = torch.nn.functional.cross_entropy(logits, targets)
        return float(nll), bool((logits.argmax(-1) == targets).all())


def measure(bench: Bench, subject: Subject, tasks: dict[str, list], texts: dict[str, list]) -> None:
    for name, samples in tasks.items():
        found = [bench.losses(subject, ids, last) for ids, last in samples]
        subject.found[f"{name} hits"] = sum(hit for _, hit in found)
        subject.found[f"{name} nll"] = sum(nll for nll, _ in found) / len(found)
    for name, sequences in texts.items():
        found = [bench.losses(subject, ids, len(ids) // 2)[0] for ids in sequences]
        subject.found[f"{name} perplexity"] = math.exp(sum(found) / len(found))


def table(subjects: list[Subject], tasks: dict[str, list], texts: dict[str, list]) -> str:
    """Markdown, for READMEs."""
    heads = [f"{name} (of {len(samples)})" for name, samples in tasks.items()] + list(texts)
    lines = ["| | KB a layer | " + " | ".join(heads) + " |", "|---" * (len(heads) + 2) + "|"]
    for subject in subjects:
        size = "T" if subject.bytes_of_layer is None else f"{subject.bytes_of_layer / 1000:.0f}"
        cells = [f"{subject.found[f'{name} hits']:.0f}, {subject.found[f'{name} nll']:.2f}" for name in tasks]
        cells += [f"{subject.found[f'{name} perplexity']:.2f}" for name in texts]
        lines.append(f"| {subject.name} | {size} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sequences_of(ids: list[int], length: int, count: int) -> list[list[int]]:
    """Evenly spread over a text."""
    step = max(length, (len(ids) - length) // max(1, count))
    return [ids[at:at + length] for at in range(0, len(ids) - length + 1, step)][:count]


def recall(context: Context) -> Iterator[Row]:
    """HEDGEROW_RECALL_RUN: a finished run; else the quickstart's recipe is run."""
    require_packages("torch", "transformers")
    filler_path = context.data("wikitext2_valid.txt")
    other_path = Path(os.environ.get("HEDGEROW_RECALL_TEXT", context.cache / "data" / "devils-dictionary.txt.gz"))
    bench = Bench(context, run_of(context))
    ids = {name: bench.tokenizer(text_of(path), add_special_tokens=False).input_ids
           for name, path in (("WikiText-2", filler_path), (re.sub(r"\..*", "", other_path.name), other_path))}
    lengths = dict(list(TASKS.items())[:1]) if context.is_quick else TASKS
    spans = dict(list(TEXTS.items())[:1]) if context.is_quick else TEXTS
    tasks = {f"{word} at {length:,}": make_tasks(bench.tokenizer, ids["WikiText-2"], length, count, make)
             for word, make in (("passkey", passkey), ("key-value", pair_of_many)) for length, count in lengths.items()}
    texts = {f"{name}, T = {length:,}": sequences_of(own, length, count) for name, own in ids.items()
             for length, count in spans.items()}
    subjects = bench.subjects()
    for subject in subjects:
        measure(bench, subject, tasks, texts)
        print(f"  {subject.name}: " + ", ".join(f"{name} {value:.3g}" for name, value in subject.found.items()), flush=True)
    print(table(subjects, tasks, texts), flush=True)
    (context.work / "recall.json").write_text(json.dumps({subject.name: {"bytes": subject.bytes_of_layer, **subject.found}
                                                          for subject in subjects}, indent=1))
    yield from rows_of(bench, {subject.name: subject.found for subject in subjects}, tasks, texts)


def rows_of(bench: Bench, found: dict[str, dict[str, float]], tasks: dict[str, list], texts: dict[str, list]) -> Iterator[Row]:
    most = bench.attention.window_size
    teacher, full = found["teacher"], found[f"student, {most} keys by residual"]
    rounded, window = found[f"student, {most} keys by residual, bf16 sums"], bench.attention.equal_window(most, 2)
    for name in texts:
        for keys in sorted({most // 2, most}):
            yield against(f"{name}: perplexity with {keys} keys by residual", found[f"student, {keys} keys by residual"]
                          [f"{name} perplexity"], "", "<= 1", "by recency", found[f"student, {keys} keys by recency"]
                          [f"{name} perplexity"])
        yield against(f"{name}: perplexity with {most} keys and bf16 sums", rounded[f"{name} perplexity"], "", "<= 1",
                      f"untrained window of {window}, of equal bytes", found[f"window of {window}"][f"{name} perplexity"])
    for name in tasks:
        if name.startswith("passkey") and not name.endswith("4,096"):
            yield against(f"{name}: hits with {most} keys", full[f"{name} hits"], "", ">= 0.5", "teacher",
                          max(1.0, teacher[f"{name} hits"]))


def run_of(context: Context) -> Path:
    given = os.environ.get("HEDGEROW_RECALL_RUN")
    if given:
        return Path(given)
    run = context.work / "run-quickstart"
    recipe = Path(__file__).parents[2] / "deploy" / "recipes" / "smollm2_quickstart.toml"
    done = subprocess.run([context.program("hedgerow"), "run", "--run", run, "--recipe", recipe], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow run --run {run} exits {done.returncode}: {done.stderr.strip()[-500:]}")
    return run
