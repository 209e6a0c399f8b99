"""What an exact cache of keys is worth: recall behind the window, and perplexity, beside untrained windows of equal bytes.

  tests/bench/recall_rows.py --table FILE     the Markdown table of a recall.json, which the row writes beside its export

Everything is fp32 on the CPU in transformers. The untrained windows are the teacher under a terraced window and sinks. The
student is an export in plain PyTorch, whose layers are given other cache sizes, and for comparison another choice of keys.
Recall is judged by greedy generation: the prompt is read, then a token is decoded at a time, with what each subject carries
from step to step. The right token is given in place of a wrong one, which by then is a miss, so that every token of the key
has its likelihood.
"""

from __future__ import annotations

import argparse
import copy
import functools
import gzip
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator
from unittest import mock

from bench_common import REPOSITORY, Context, Row, Skip, against, require_packages

# Tokens of a prompt with its question, and how many contexts of each kind; of key-value pairs each context has four questions.
TASKS = {"passkey": {768: 8, 2048: 6, 4096: 6}, "key-value": {768: 3, 2048: 3, 4096: 2}}
QUICK_TASKS = {"passkey": {768: 4}, "key-value": {768: 1}}
# Tokens of a sequence, of whose second half the perplexity is, and how many of each text.
TEXTS = {512: 6, 2048: 3}
QUICK_TEXTS = {512: 2}
HITS_OF_HALF = (768, 2048)  # lengths at which the student must have half of the teacher's passkeys
KEY_BYTES, POSITION_BYTES = 2, 8  # bf16, int64
SUM_BYTES = {"fp32": 4, "bf16": 2}


@dataclass
class Attention:
    """A student's attention, as its config.json says it, and the bytes that a sequence keeps in a layer."""

    window_size: int
    num_sinks: int
    feature_dim: int
    kv_heads: int
    head_dim: int
    key_maps: int

    def bytes_of_window(self, window: int) -> int:
        """A terraced ring and the sinks, keys and values of all kv heads."""
        return (2 * window + self.num_sinks) * 2 * self.kv_heads * self.head_dim * KEY_BYTES

    def bytes_of_student(self, recall: int, sums: str) -> int:
        """As storage/shape/state_bytes: the same, the cache with its positions, S and z in "fp32" or "bf16"."""
        cache = recall * self.kv_heads * (2 * self.head_dim * KEY_BYTES + POSITION_BYTES)
        state = self.key_maps * self.feature_dim * (self.head_dim + 1) * SUM_BYTES[sums]
        return self.bytes_of_window(self.window_size) + cache + state

    def equal_window(self, recall: int, sums: str) -> int:
        """The smallest untrained window with at least the student's bytes."""
        of_token = self.bytes_of_window(1) - self.bytes_of_window(0)
        return math.ceil((self.bytes_of_student(recall, sums) - self.bytes_of_window(0)) / of_token)

    def equal_windows(self) -> list[int]:
        """Of the student without a cache, and of a full one with sums in bf16 and in fp32."""
        cases = ((0, "fp32"), (self.window_size, "bf16"), (self.window_size, "fp32"))
        found = {self.equal_window(*case) for case in cases}
        return sorted(window for window in found if window + 1 not in found)  # the larger of two neighbors stands for both

    def opponent(self, recall: int, sums: str) -> int:
        """The one of these windows that stands for the student's bytes."""
        return min(window for window in self.equal_windows() if window >= self.equal_window(recall, sums))


@dataclass
class Task:
    """A context in which something is hidden, and questions about it with their answers; context + question: the length."""

    context: list[int]
    questions: list[tuple[list[int], list[int]]]


@dataclass
class Subject:
    """One column of figures: a model and how it attends."""

    name: str
    model: Any
    bytes_of_layer: int | None  # None: grows with the tokens
    setting: Callable[[], ContextManager[None]] = nullcontext  # holds while the model computes
    found: dict[str, float] = field(default_factory=dict)

    def read(self, ids: list[int], cache: Any = None, keep: int = 1) -> tuple[Any, Any]:
        """Log-probabilities [keep, V] behind the last tokens, and the cache after them. `cache` may change in place."""
        import torch
        with self.setting(), torch.inference_mode():
            out = self.model(torch.tensor([ids]), past_key_values=cache, use_cache=True, logits_to_keep=keep)
            return out.logits[0].float().log_softmax(-1), out.past_key_values

    def answers(self, task: Task) -> Iterator[tuple[bool, float]]:
        """Of each question: whether greedy decoding gives the answer, and the answer's mean negative log-likelihood."""
        _, context = self.read(task.context)
        for left, (question, answer) in reversed(list(enumerate(reversed(task.questions)))):
            log_p, cache = self.read(question, copy.deepcopy(context) if left else context)
            hit, loss = True, 0.0
            for index, token in enumerate(answer):
                hit, loss = hit and int(log_p[-1].argmax()) == token, loss - float(log_p[-1, token])
                if index + 1 < len(answer):
                    log_p, cache = self.read([token], cache)
            yield hit, loss / len(answer)

    def loss_of_second_half(self, ids: list[int]) -> float:
        half = len(ids) // 2
        log_p, _ = self.read(ids, keep=half + 1)
        return -sum(float(log_p[i, token]) for i, token in enumerate(ids[-half:])) / half


# The tasks.

def text_of(path: Path) -> str:
    if not path.exists():
        raise Skip(f"{path} is not there")
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix in (".gz", ".dz") else data).decode("utf-8", "replace")


def passkey(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """What is hidden, and the questions with their answers. A question ends in a space, or whether the model writes it would
    decide over digits that it knows."""
    key = rng.randrange(10000, 100000)
    return (f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n",
            [("\n\nWhat is the pass key? The pass key is ", str(key))])


def key_value(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Four lines of a name and a number, each of which is asked for. A name is one token: questions are equally long."""
    names = ["Alice", "Robert", "Maria", "Peter", "Laura", "Thomas", "Helen", "Martin", "Sarah", "David"]
    values = {name: rng.randrange(100, 1000) for name in rng.sample(names, 4)}
    lines = "".join(f"The number of {name} is {value}.\n" for name, value in values.items())
    return f"\n\n{lines}\n", [(f"\n\nRemember the numbers above.\nThe number of {name} is ", str(values[name]))
                              for name in values]


KINDS = {"passkey": passkey, "key-value": key_value}


def make_tasks(tokenizer: Any, filler: list[int], length: int, count: int, kind: str, last: int) -> list[Task]:
    """Tasks of `length` tokens. What is hidden lies in front of the context's `last` tokens, if those are not nearly all."""
    def encode(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids
    tasks: list[Task] = []
    for index in range(count):
        rng = random.Random(f"{kind} {length} {index}")
        hidden, asked = KINDS[kind](rng)
        pairs, needle = [(encode(question), encode(answer)) for question, answer in asked], encode(hidden)
        room = length - len(needle) - len(pairs[0][0])
        if any(len(question) != len(pairs[0][0]) for question, _ in pairs):
            raise RuntimeError(f"{kind}: this tokenizer makes questions of different lengths")
        first = rng.randrange(len(filler) - room)
        at = rng.randrange(room // 10, max(room // 10 + 1, min(room * 7 // 10, room - last)))
        prose = filler[first:first + room]
        tasks.append(Task(prose[:at] + needle + prose[at:], pairs))
    return tasks


def sequences_of(ids: list[int], length: int, count: int) -> list[list[int]]:
    """Evenly spread over a text, without overlap; fewer where the text is short."""
    step = max(length, (len(ids) - length) // max(1, count))
    return [ids[at:at + length] for at in range(0, len(ids) - length + 1, step)][:count]


# The subjects.

def attend_in_window(window: int, sinks: int, module: Any, q: Any, k: Any, v: Any, _mask: Any, scaling: float | None = None,
                     **_: Any) -> tuple[Any, None]:
    """Attention of transformers' interface under a terraced window and sinks, in O(T (2 W + S)); q [1, H, n, D], the last n of
    k and v [1, G, T, D]. Query i sees the sinks and its own and the previous chunk, causally."""
    import torch
    import torch.nn.functional as F
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    new, length = q.shape[2], k.shape[2]
    if new < length:
        i, j = torch.arange(length - new, length)[:, None], torch.arange(length)[None]
        seen = (j <= i) & ((j // window >= i // window - 1) | (j < sinks))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling).transpose(1, 2), None
    chunks = -(-length // window)
    # Chunks are the batch: [chunks, H, W, D], and of keys the sinks, the previous chunk, the own one.
    q, own_k, own_v = (F.pad(x[0], (0, 0, 0, chunks * window - length)).unflatten(1, (chunks, window)).transpose(0, 1)
                       for x in (q, k, v))
    keys, values = (torch.cat((
        x[:, :, :sinks].expand(chunks, -1, -1, -1), F.pad(own, (0, 0, 0, 0, 0, 0, 1, 0))[:-1], own), dim=2)
        for x, own in ((k, own_k), (v, own_v)))
    i = torch.arange(chunks * window).view(chunks, window, 1)
    j = (torch.arange(chunks) * window)[:, None, None] + torch.arange(-window, window)
    seen = torch.cat((torch.arange(k[:, :, :sinks].shape[2]) <= i, (j <= i) & (j >= sinks)), dim=-1)[:, None]
    y = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, scale=scaling)
    return y.transpose(0, 1).flatten(1, 2)[None, :, :length].transpose(1, 2), None


class Bench:
    """Teacher and student, and what either is under each setting."""

    def __init__(self, context: Context, export: Path):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
        self.tokenizer = AutoTokenizer.from_pretrained(context.model())
        self.teacher = AutoModelForCausalLM.from_pretrained(context.model(), dtype=torch.float32).eval()
        with mock.patch.dict(os.environ, HEDGEROW_OPS="off"):  # the choice by recency and the rounded sums are Python's
            self.student = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32, trust_remote_code=True).eval()
        config = self.student.config
        spec = config.attention
        if spec["window"] != "terraced":
            raise Skip(f"the student's window is {spec['window']}; windows of equal bytes are terraced here")
        self.attention = Attention(spec["window_size"], spec["num_sinks"], spec["feature_dim"], config.num_key_value_heads,
                                   config.head_dim, config.num_key_maps)
        self._layers = [layer.self_attn for layer in self.student.model.layers if not layer.self_attn.softmax]
        if len(self._layers) < len(self.student.model.layers):
            raise Skip("the student has layers of softmax attention, which keep all tokens; the bytes here are of linear ones")
        # The class of the export's hybrid_hedgerow.py, which is loaded with the export.
        self._hybrid = next((one for one in type(self._layers[0]).__mro__ if "_scores" in vars(one)), None)
        if self._hybrid is None:
            raise Skip("the export's code is of an earlier build, without _scores; export again")

    @contextmanager
    def _windowed(self, window: int) -> Iterator[None]:
        from transformers import AttentionInterface
        before, name = self.teacher.config._attn_implementation, f"hedgerow_window_{window}"
        AttentionInterface.register(name, functools.partial(attend_in_window, window, self.attention.num_sinks))
        self.teacher.set_attn_implementation(name)
        try:
            yield
        finally:
            self.teacher.set_attn_implementation(before)

    @contextmanager
    def _recalling(self, keys: int, by_recency: bool, sums: str) -> Iterator[None]:
        """The student's layers with so many recalled keys, those that left the window last or those that the sums recall worst;
        "bf16": the sums are rounded after each addition."""
        add = self._hybrid._add_features

        def rounding(state, phi, v):
            add(state, phi, v)
            state.kv, state.k = state.kv.bfloat16().float(), state.k.bfloat16().float()

        def recency(_self, _state, _phi, _v, positions):
            return positions.float()
        with ExitStack() as changed:
            for layer in self._layers:
                changed.enter_context(mock.patch.object(layer, "recall_cache", keys))
            if by_recency:
                changed.enter_context(mock.patch.object(self._hybrid, "_scores", recency))
            if sums == "bf16":
                changed.enter_context(mock.patch.object(self._hybrid, "_add_features", staticmethod(rounding)))
            yield

    def subjects(self) -> list[Subject]:
        attention, most = self.attention, self.attention.window_size
        found = [Subject("teacher", self.teacher, None)]
        for window in (most, *attention.equal_windows()):
            found.append(Subject(window_name(window), self.teacher, attention.bytes_of_window(window),
                                 functools.partial(self._windowed, window)))
        cases = [(0, False, "fp32")]
        cases += [(keys, by_recency, "fp32") for keys in cache_sizes(most) for by_recency in (True, False)]
        for case in (*cases, (most, False, "bf16")):
            found.append(Subject(student_name(*case), self.student, attention.bytes_of_student(case[0], case[2]),
                                 functools.partial(self._recalling, *case)))
        return found


def cache_sizes(window_size: int) -> list[int]:
    """At most the window may be kept."""
    return sorted({max(1, window_size // 2), window_size})


def window_name(window: int) -> str:
    return f"untrained window of {window}"


def student_name(keys: int, by_recency: bool = False, sums: str = "fp32") -> str:
    name = f"student, {keys} keys by {'recency' if by_recency else 'residual'}" if keys else "student"
    return name + (", bf16 sums" if sums == "bf16" else "")


# The measurement.

def measure(subject: Subject, tasks: dict[str, list[Task]], texts: dict[str, list]) -> None:
    """Fills subject.found, and says each figure when it is there."""
    print(f"  {subject.name}", flush=True)
    begin = time.monotonic()
    for name, samples in tasks.items():
        found = [answer for task in samples for answer in subject.answers(task)]
        hits, loss = sum(hit for hit, _ in found), sum(loss for _, loss in found) / len(found)
        subject.found |= {f"{name}: hits": hits, f"{name}: questions": len(found), f"{name}: nll": loss}
        print(f"    {name}: {hits} of {len(found)}, nll {loss:.3f}", flush=True)
    for name, sequences in texts.items():
        loss = sum(subject.loss_of_second_half(ids) for ids in sequences) / len(sequences)
        subject.found[f"{name}: perplexity"] = math.exp(loss)
        print(f"    {name}: perplexity {math.exp(loss):.2f}", flush=True)
    print(f"    {time.monotonic() - begin:.0f} s", flush=True)


def table(figures: dict[str, dict[str, Any]]) -> str:
    """Markdown, for READMEs: a subject a line, of recall.json."""
    first = next(iter(figures.values()))
    tasks = [key.removesuffix(": hits") for key in first if key.endswith(": hits")]
    texts = [key.removesuffix(": perplexity") for key in first if key.endswith(": perplexity")]
    heads = ["", "KB a layer", *(f"{name} (of {first[f'{name}: questions']})" for name in tasks), *texts]
    lines = [f"| {' | '.join(heads)} |".replace("|  |", "| |", 1), "|" + " --- |" * len(heads)]
    for subject, found in figures.items():
        size = "all tokens" if found["bytes_of_layer"] is None else f"{found['bytes_of_layer'] / 1000:.0f}"
        cells = [f"{found[f'{name}: hits']}, {found[f'{name}: nll']:.2f}" for name in tasks]
        cells += [f"{found[f'{name}: perplexity']:.2f}" for name in texts]
        lines.append(f"| {' | '.join((subject, size, *cells))} |")
    return "\n".join(lines)


def recall(context: Context) -> Iterator[Row]:
    """The rows. HEDGEROW_RECALL_RUN: a finished run or an export, in place of a run of the quickstart's recipe;
    HEDGEROW_RECALL_TEXT: another second text."""
    require_packages("torch", "transformers")
    other = Path(os.environ.get("HEDGEROW_RECALL_TEXT") or context.cache / "data" / "devils-dictionary.txt.gz")
    texts_of_names = {"WikiText-2": text_of(context.data("wikitext2_valid.txt")), other.name.split(".")[0]: text_of(other)}
    bench = Bench(context, export_of(context))
    ids = {name: bench.tokenizer(text, add_special_tokens=False, verbose=False).input_ids
           for name, text in texts_of_names.items()}
    contexts, spans = (QUICK_TASKS, QUICK_TEXTS) if context.is_quick else (TASKS, TEXTS)
    last = 2 * max(bench.attention.equal_windows())  # so that no window here sees what is hidden
    tasks = {task_name(kind, length): make_tasks(bench.tokenizer, ids["WikiText-2"], length, count, kind, last)
             for kind, counts in contexts.items() for length, count in counts.items()}
    texts = {f"{name}, T = {length:,}": sequences_of(own, length, count) for name, own in ids.items()
             for length, count in spans.items()}
    figures: dict[str, dict[str, Any]] = {}
    for subject in bench.subjects():
        measure(subject, tasks, texts)
        figures[subject.name] = {"bytes_of_layer": subject.bytes_of_layer, **subject.found}
        (context.work / "recall.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(f"{table(figures)}\nkept in {context.work / 'recall.json'}", flush=True)
    yield from rows_of(bench.attention, figures, list(tasks), list(texts), list(contexts["passkey"]))


def task_name(kind: str, length: int) -> str:
    return f"{kind} at {length:,}"


def rows_of(attention: Attention, figures: dict[str, dict[str, Any]], tasks: list[str], texts: list[str],
            passkey_lengths: list[int]) -> Iterator[Row]:
    most = attention.window_size
    for keys in cache_sizes(most):
        ours, theirs = figures[student_name(keys)], figures[student_name(keys, by_recency=True)]
        for name in tasks:
            key = f"{name}: hits"
            yield Row(f"{name}: hits with {keys} keys by residual, less those by recency", ours[key] - theirs[key], "", ">= 0")
            key = f"{name}: nll"
            yield against(f"{name}: nll a token with {keys} keys by residual", ours[key], "", "<= 1", "by recency", theirs[key])
        for name in texts:
            key = f"{name}: perplexity"
            yield against(f"{name}: perplexity with {keys} keys by residual", ours[key], "", "<= 1", "by recency", theirs[key])
    window = attention.opponent(most, "bf16")
    for name in texts:
        key = f"{name}: perplexity"
        yield against(f"{name}: perplexity with {most} keys, bf16 sums", figures[student_name(most, sums="bf16")][key], "",
                      "<= 1", f"{window_name(window)}, of equal bytes", figures[window_name(window)][key])
    for length in (length for length in HITS_OF_HALF if length in passkey_lengths):
        key = f"{task_name('passkey', length)}: hits"
        hits, name = figures["teacher"][key], f"{task_name('passkey', length)}: hits with {most} keys"
        if hits:
            yield against(name, figures[student_name(most)][key], "", ">= 0.5", "teacher", hits)
        else:
            yield Row(name, None, "", ">= 0.5", skipped_reason="the teacher answers none")


def export_of(context: Context) -> Path:
    """The student's export: HEDGEROW_RECALL_RUN if that is one, else of that run or of the quickstart's."""
    given = os.environ.get("HEDGEROW_RECALL_RUN")
    run = Path(given).expanduser() if given else context.work / "run-quickstart"
    if (run / "config.json").exists():
        return run
    if not given:
        recipe = REPOSITORY / "deploy" / "recipes" / "smollm2_quickstart.toml"
        call(context, "run", "--run", run, "--recipe", recipe)
    elif not run.is_dir():
        raise Skip(f"HEDGEROW_RECALL_RUN: {run} is not there")
    export = context.work / "recall-export"
    shutil.rmtree(export, ignore_errors=True)
    call(context, "export", "--run", run, "--out", export, "--recall-cache", "0")
    return export


def call(context: Context, *words: str | Path) -> None:
    done = subprocess.run([context.program("hedgerow"), *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"hedgerow {' '.join(map(str, words))} exits {done.returncode}: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, metavar="FILE", required=True, help="print the table of this recall.json")
    print(table(json.loads(parser.parse_args().table.read_text())))
    sys.exit(0)
