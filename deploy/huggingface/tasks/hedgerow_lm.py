"""lm-eval's model class over hedgerow-worker: the model `hedgerow`.

    python deploy/huggingface/tasks/hedgerow_lm.py run --model hedgerow --model_args run=DIR,subject=lora --tasks TASKS

is lm-eval's own command line with this model registered. A `hedgerow-worker answer` holds the model; texts go to it as token
ids. Tokens, prefix and chat template are the teacher's own, by transformers' tokenizer.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterable

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))
from hedgerow_worker import Worker, WorkerFailed  # noqa: E402
from model_tokenizer import auto_tokenizer  # noqa: E402

ROWS_A_QUESTION = 16384  # tokens; the worker makes its passes of them
SCORED_WINDOW = 2048     # tokens of one piece of a long text, unless `max_length` says more


def worker_words(run: str = "", subject: str = "") -> tuple[list[str], str]:
    """The worker's command line for a subject of a run and the teacher's directory, both as `hedgerow` chooses them."""
    hedgerow = os.environ.get("HEDGEROW", shutil.which("hedgerow") or "hedgerow")
    words = [hedgerow, "evaluate", "--run", run, "--print-subjects", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        raise WorkerFailed((found.stderr or found.stdout).strip().splitlines()[-1])
    job = json.loads(found.stdout)
    named = {one["name"]: one for one in job["subjects"]}
    chosen = subject or list(named)[-1]
    if chosen not in named:
        raise WorkerFailed(f"{run} has no subject '{chosen}'; it has {', '.join(named)}")
    return [job["worker"], "answer", *named[chosen]["arguments"]], job["model"]


@register_model("hedgerow")
class Hedgerow(TemplateLM):
    """`words`: the worker's command line, and `model` the directory with the tokenizer; or `run` and `subject`."""

    def __init__(self, words: list[str] | None = None, model: str = "", run: str = "", subject: str = "",
                 max_length: int | None = None, max_gen_toks: int = 256, **_: Any) -> None:
        super().__init__()
        if words is None:
            words, model = worker_words(run, subject)
        self.tokenizer = auto_tokenizer().from_pretrained(model)
        self.worker = Worker(words)
        self.max_length = int(max_length or self.worker.description["max_position_embeddings"])
        self.max_gen_toks = int(max_gen_toks)

    def close(self) -> None:
        self.worker.close()

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        if self.tokenizer.bos_token_id is not None:
            return self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.name_or_path.replace("/", "__")

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self.tokenizer.apply_chat_template(chat_history, tokenize=False, add_generation_prompt=add_generation_prompt,
                                                  continue_final_message=not add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        # As lm-eval's `hf`: a text that begins with the first token already does not get it twice.
        begins = self.tokenizer.bos_token is not None and string.startswith(self.tokenizer.bos_token)
        if add_special_tokens is None:
            add_special_tokens = not begins
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def _scores(self, texts: Iterable[tuple[list[int], int]]) -> Iterable[dict]:
        """Of (ids, the first that counts), by questions of so many tokens."""
        question, tokens = [], 0
        for ids, first in texts:
            if question and tokens + len(ids) > ROWS_A_QUESTION:
                yield from self.worker.ask({"score": question})["scores"]
                question, tokens = [], 0
            question.append({"ids": ids, "first": first})
            tokens += len(ids)
        if question:
            yield from self.worker.ask({"score": question})["scores"]

    def _loglikelihood_tokens(self, requests: list[tuple[tuple[str, str], list[int], list[int]]],
                              **_: Any) -> list[tuple[float, bool]]:
        texts = []
        for _, context, continuation in requests:
            ids = (context + continuation)[-(self.max_length + 1):]
            texts.append((ids, len(ids) - len(continuation)))
        return [(sum(scores["log_probabilities"]), scores["is_greedy"]) for scores in self._scores(texts)]

    def loglikelihood_rolling(self, requests: list, disable_tqdm: bool = False) -> list[float]:
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
        found = []
        for request in requests:
            windows = map(make_disjoint_window, get_rolling_token_windows(
                self.tok_encode(request.args[0], add_special_tokens=False), self.prefix_token_id,
                min(self.max_length, SCORED_WINDOW), 1))
            texts = [(context + own, len(context)) for context, own in windows]
            found.append(sum(sum(scores["log_probabilities"]) for scores in self._scores(texts)))
        return found

    def generate_until(self, requests: list, disable_tqdm: bool = False) -> list[str]:
        answers: list[str] = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(index)
        for indices in groups.values():
            settings = requests[indices[0]].args[1]
            until = settings.get("until") or []
            until = [until] if isinstance(until, str) else list(until)
            new = int(settings.get("max_gen_toks", self.max_gen_toks))
            temperature = float(settings.get("temperature") or 0.0) if settings.get("do_sample") else 0.0
            prompts = [self.tok_encode(requests[index].args[0])[-(self.max_length - new):] for index in indices]
            begin = 0
            while begin < len(prompts):
                end, tokens = begin, 0
                while end < len(prompts) and (end == begin or tokens + len(prompts[end]) + new <= ROWS_A_QUESTION):
                    tokens += len(prompts[end]) + new
                    end += 1
                rows = self.worker.ask({"generate": prompts[begin:end], "max_new_tokens": new,
                                        "temperature": temperature})["rows"]
                for index, ids in zip(indices[begin:end], rows):
                    answers[index] = self._text(ids, until)
                begin = end
        return answers

    def _text(self, ids: list[int], until: list[str]) -> str:
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        for stop in until:
            if stop:
                text = text.split(stop)[0]
        return text


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    cli_evaluate()
