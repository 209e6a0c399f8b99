"""A model directory's tokenizer without transformers: tokenizer.json, special token ids and the chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Sequence

import xxhash
from tokenizers import Encoding, Tokenizer

from common import UsageError, read_json

# Templates that print today's date would make tokens depend on the day; this one is Llama 3.1's own default.
TEMPLATE_DATE = "26 Jul 2024"


def _first(value: Any) -> int | None:
    """config.json writes one id or a list of ids."""
    if isinstance(value, list):
        return value[0] if value else None
    return value


class ModelTokenizer:
    """Encodes without special tokens of its own accord: who calls decides about BOS and EOS."""

    def __init__(self, directory: Path):
        self.directory = directory
        path = directory / "tokenizer.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UsageError(f"{path}: no such file; run prepare.py, or save the model's fast tokenizer there") from None
        try:
            self.backend = Tokenizer.from_buffer(data)
        except Exception as error:  # the tokenizers package raises bare Exception
            raise UsageError(f"{path}: not a readable tokenizer ({error})") from None
        self.backend.no_truncation()
        self.backend.no_padding()
        self.hash = xxhash.xxh3_128_hexdigest(data)
        config = read_json(directory / "config.json")
        self.vocab_size: int = config["vocab_size"]
        self.bos_id = _first(config.get("bos_token_id"))
        self.eos_id = _first(config.get("eos_token_id"))
        settings = directory / "tokenizer_config.json"
        self._settings = read_json(settings) if settings.exists() else {}
        self._template = None

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        return self.backend.encode_batch(list(texts), add_special_tokens=False)

    def encode(self, text: str) -> list[int]:
        return self.backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise UsageError(f"token id {token} is outside the vocabulary ({self.vocab_size} entries)")
        return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def special_text(self, key: str) -> str:
        """tokenizer_config.json's bos_token and the like, which may be a string or an object."""
        value = self._settings.get(key) or ""
        return value.get("content", "") if isinstance(value, dict) else value

    def render_chat(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = False) -> str:
        """The model's chat template over [{"role", "content"}, ...], as transformers renders it."""
        if self._template is None:
            self._template = self._compile_template()
        return self._template.render(messages=list(messages), add_generation_prompt=add_generation_prompt,
                                     bos_token=self.special_text("bos_token"), eos_token=self.special_text("eos_token"),
                                     pad_token=self.special_text("pad_token"))

    def _compile_template(self) -> Any:
        import jinja2.ext
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        beside = self.directory / "chat_template.jinja"
        source = beside.read_text(encoding="utf-8") if beside.exists() else self._settings.get("chat_template")
        if isinstance(source, list):  # named templates
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if not source:
            raise UsageError(f"{self.directory}: the model has no chat template; use format alpaca, records or jsonl")

        def refuse(message: str) -> None:
            raise UsageError(f"{self.directory}: the chat template refuses these messages: {message}")

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                    extensions=[jinja2.ext.loopcontrols])
        environment.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)
        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda _format: TEMPLATE_DATE
        return environment.from_string(source)
