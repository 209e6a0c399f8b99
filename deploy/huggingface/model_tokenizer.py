"""A model directory's tokenizer and chat template, which are transformers' own (AutoTokenizer), without PyTorch.

Texts are encoded by the tokenizer's backend, without special tokens of its own accord: who calls decides what begins and
ends a document. What it begins with by default is what AutoTokenizer puts before a text.
"""

from __future__ import annotations

import datetime
import os
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

import xxhash
from tokenizers import Encoding

from common import UsageError, read_json

# Templates that print today's date would make tokens depend on the day; this one is Llama 3.1's own default.
TEMPLATE_DATE = datetime.datetime(2024, 7, 26)


def _first(value: Any) -> int | None:
    """config.json writes one id or a list of ids."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


def auto_tokenizer() -> Any:
    """transformers' AutoTokenizer: offline, quiet, and without PyTorch, which is slow to import and not needed."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    hides_torch = "transformers" not in sys.modules and "torch" not in sys.modules
    if hides_torch:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        from transformers import AutoTokenizer
    finally:
        if hides_torch:
            del sys.modules["torch"]
    return AutoTokenizer


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


class ModelTokenizer:
    """`begin_ids`: what AutoTokenizer puts before a text; `bos_id`: the tokenizer's, whatever config.json says; `eos_id`:
    config.json's first, or else the tokenizer's."""

    def __init__(self, directory: Path):
        self.directory = directory
        path = directory / "tokenizer.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file; run prepare.py, or save the model's fast tokenizer there") from None
        self.hash = xxhash.xxh3_128_hexdigest(data)
        for name in ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
            if name == "config.json" or (directory / name).exists():
                read_json(directory / name)  # for the error, which names the file
        config = read_json(directory / "config.json")
        self.vocab_size: int = config["vocab_size"]
        try:
            self._tokenizer = auto_tokenizer().from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # transformers raises whatever it met
            raise UsageError(f"{path}: not a readable tokenizer, says transformers' AutoTokenizer ({_one_line(error)})") from None
        self.backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if self.backend is None:
            raise UsageError(f"{path}: AutoTokenizer takes {type(self._tokenizer).__name__}, which is no fast tokenizer")
        self.backend.no_truncation()
        self.backend.no_padding()
        self.bos_id: int | None = self._tokenizer.bos_token_id
        eos = _first(config.get("eos_token_id"))
        self.eos_id: int | None = self._tokenizer.eos_token_id if eos is None else eos
        self.begin_ids = self._begin_ids()

    def _begin_ids(self) -> list[int]:
        encoding = self.backend.encode("a", add_special_tokens=True)
        count = next((i for i, special in enumerate(encoding.special_tokens_mask) if not special), 0)
        return self._checked(encoding.ids[:count])

    def _checked(self, ids: Sequence[int]) -> list[int]:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise UsageError(f"{self.directory}: token id {token} is outside the vocabulary ({self.vocab_size} entries)")
        return list(ids)

    def begin_of(self, add_bos: bool | str) -> list[int]:
        """What begins a text: by "auto" what AutoTokenizer puts there, by True its BOS, by False nothing."""
        if add_bos == "auto":
            return self.begin_ids
        if not add_bos:
            return []
        if self.bos_id is None:
            raise UsageError(f"{self.directory}: add_bos is true, but the tokenizer has no BOS token; set it to \"auto\"")
        return self._checked([self.bos_id])

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return self.backend.encode_batch(list(texts), add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def prompt_ids(self, text: str, add_bos: bool | str = "auto") -> list[int]:
        """By "auto" AutoTokenizer(...)(text).input_ids, whatever stands behind the text included."""
        if add_bos == "auto":
            return self._checked(self.backend.encode(text, add_special_tokens=True).ids)
        return self.begin_of(add_bos) + self.encode(text)

    def chat_ids(self, messages: Sequence[dict], add_bos: bool | str = "auto") -> list[int]:
        """The chat template with the assistant's turn opened; what begins it is the template's to say, unless True."""
        ids = self.encode(self.render_chat(messages, add_generation_prompt=True, date=None))
        begin = self.begin_of(add_bos) if add_bos is True else []
        return self._checked(ids if ids[:len(begin)] == begin else begin + ids)

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True, after: Sequence[int] = ()) -> str:
        """The text of `ids`, which follow the ids `after`: decoders of SentencePiece's kind drop the first space of what
        they are given."""
        self._checked([*after, *ids])
        def text(of: Sequence[int]) -> str:
            return self._tokenizer.decode(list(of), skip_special_tokens=skip_special_tokens)
        before, whole = text(after), text([*after, *ids])
        return whole[len(before):] if whole.startswith(before) else text(ids)

    def render_chat(self, messages: Sequence[dict], add_generation_prompt: bool = False, tools: list | None = None,
                    documents: list | None = None, date: datetime.datetime | None = TEMPLATE_DATE) -> str:
        """The model's chat template over [{"role", "content"}, ...], as apply_chat_template renders it but for the day:
        templates that print it print `date`, or with None today's. UsageError with the template's own message."""
        settings: dict[str, Any] = {} if date is None else {"strftime_now": date.strftime}
        return self._render(lambda: self._tokenizer.apply_chat_template(
            list(messages), tools=tools, documents=documents, add_generation_prompt=add_generation_prompt, tokenize=False,
            **settings))

    def _render(self, render: Callable[[], str]) -> str:
        if self._tokenizer.chat_template is None:
            raise UsageError(f"{self.directory}: the model has no chat template; use format alpaca, records or jsonl")
        try:
            return render()
        except Exception as error:  # jinja2's, and what a template's expressions raise
            raise UsageError(f"{self.directory}: the chat template refuses these messages: {_one_line(error)}") from None
