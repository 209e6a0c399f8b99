"""Reads the text sources of a recipe's data section into documents, not yet tokenized.

A document is one or more pieces of text, tokenized piece by piece, with the character spans whose tokens count as
targets of the finetune loss. Formats: README.md "Sources".
"""

from __future__ import annotations

import json
import string
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from common import UsageError
from generated_records import MAKERS, generated_records
from reading import TURNS, OnBytes, Range, check_record, kind, read_lines, read_parts, read_records
from source_shape import refuse_records_as_text
from tables import names

OnUnused = Callable[[str, str], None]  # (field, a sentence about it)
Records = Iterator[tuple[str, dict]]  # (where, record)
UNUSED_CHARACTERS = 20
CHARACTERS_PER_TOKEN = 4  # where no tokenizer is at hand
# Fields that change what a record says, however short they are.
MEANT = ("system", "history", "tools", "documents", "chat_template_kwargs")
# A plain text is tokenized in pieces of about this many characters (less than twice as many), cut at paragraphs.
TEXT_PIECE_CHARACTERS = 8 << 20

# The two templates of Stanford Alpaca (Taori et al. 2023).
ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
ALPACA_WITHOUT_INPUT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:\n")


@dataclass(frozen=True)
class Document:
    """Text in pieces; `answers` are (piece, begin, end) in characters, None: everything counts."""

    pieces: tuple[str, ...]
    answers: tuple[tuple[int, int, int], ...] | None = None
    own_end: bool = False  # carries its end-of-text tokens itself (chat templates)
    splittable: bool = False  # plain text: may be cut at a paragraph
    # A long plain text comes in fragments, each a Document: which of them is its first, its last.
    begins: bool = True
    ends: bool = True


@dataclass(frozen=True)
class Source:
    """One entry of `sources`, checked."""

    path: Path
    format: str
    template: str
    label_mask: str
    weight: float = 0.0  # 0: by the file's size
    shots: int = 0  # records of one document; 0 and 1: one


# Formats whose records are made here; the file says how many and how long (generated_records.py).
GENERATED = tuple(MAKERS)
BETWEEN_SHOTS = "\n\n"  # where a chat template ends no record itself


def checked_text(where: str, name: str, text: str) -> str:
    """UsageError for what a tokenizer raises at or takes for the end of a string."""
    if "\0" in text:
        raise UsageError(f"{where}: {name}: holds a NUL (\\u0000) at character {text.index(chr(0))}; take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise UsageError(f"{where}: {name}: holds half of a character (the lone surrogate {half}) at character "
                         f"{error.start}; write the whole character or leave it out") from None
    return text


def _string(where: str, record: dict, key: str, default: str | None = None) -> str:
    """UsageError if it is no text. With a default, null is as if the key were missing."""
    value = record.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        found = kind(value) if key in record else "nothing"
        advice = "leave the record out or write a string" if value is None else "write it as a string"
        raise UsageError(f"{where}: key '{key}': expected a string, found {found}; {advice}")
    return checked_text(where, f"key '{key}'", value)


class Unused:
    """Says once for each field of a source that it holds text which is not read.

    Numbers, ids and labels are not worth it: text has more than UNUSED_CHARACTERS and a space, or is no ASCII. Nor is what
    the document holds anyway.
    """

    def __init__(self, source: Source, warn: OnUnused):
        self._source, self._warn, self._said = source, warn, set()

    def see(self, where: str, record: dict, used: Iterable[str], text: str) -> None:
        for key, value in record.items():
            if key not in used and key not in self._said and (value and key in MEANT or _holds_text(value, text)):
                self.say(key, f"{where}: the field {key!r} holds text that format \"{self._source.format}\" does not read")

    def say(self, key: str, text: str) -> None:
        """Once for each key; "" is no field."""
        if key not in self._said:
            self._said.add(key)
            self._warn(key, text)


def _holds_text(value: Any, text: str, depth: int = 4) -> bool:
    if isinstance(value, str):
        return (len(value) > UNUSED_CHARACTERS and (not value.isascii() or any(map(str.isspace, value)))
                and value.strip() not in text)
    if isinstance(value, dict):
        value = list(value.values())
    return isinstance(value, list) and depth > 0 and any(_holds_text(inner, text, depth - 1) for inner in value)


def _text(source: Source, on_bytes: OnBytes, where: Range | None, piece_characters: int) -> Iterator[Document]:
    """One document, in fragments where it is long."""
    refuse_records_as_text(source.path)
    previous = None
    for piece in _pieces(read_parts(source.path, on_bytes, where), piece_characters):
        if previous is not None:
            yield replace(previous, ends=False)
        previous = Document((piece,), splittable=True, begins=previous is None)
    if previous is not None:
        yield previous


def _pieces(parts: Iterator[str], characters: int) -> Iterator[str]:
    text = ""
    for part in parts:
        text += part
        while len(text) >= 2 * characters or (len(text) > characters and text.find("\n\n", characters) >= 0):
            cut = _cut(text, characters)
            yield text[:cut]
            text = text[cut:]
    if text:
        yield text


def _cut(text: str, characters: int) -> int:
    """Behind a paragraph, or else behind a line, or else before a space."""
    for mark, behind in (("\n\n", 2), ("\n", 1), (" ", 0)):
        cut = text.find(mark, characters)
        if cut >= 0:
            return cut + behind
    return 2 * characters


def _jsonl(source: Source, records: Records, unused: Unused) -> Iterator[Document]:
    try:
        parsed = list(string.Formatter().parse(source.template))
    except ValueError as error:
        raise UsageError(f"template {source.template!r}: {error}") from None
    fields = [field for _, field, _, _ in parsed if field is not None]
    if not fields or any(not field.isidentifier() for field in fields):
        raise UsageError(f"template {source.template!r}: expected plain fields, as {{question}}, found {fields}")
    for where, record in records:
        text, answer = "", 0
        for literal, field, _, _ in parsed:
            text += literal
            if field is not None and field not in record:
                raise UsageError(f"{where}: the template {source.template!r} names '{field}', the record has "
                                 f"{names(record) or 'nothing'}; set another template")
            if field is not None:
                answer = len(text)
                text += _string(where, record, field)
        unused.see(where, record, fields, text)
        yield Document((text,), ((0, answer, len(text)),) if source.label_mask == "answer" else None)


def _alpaca_fields(where: str, record: dict) -> tuple[str, str, str, tuple[str, ...]]:
    """(instruction, input, output, the record's names of them): Alpaca's names, or Dolly's."""
    given = "input" if record.get("input") is not None or record.get("context") is None else "context"
    output = "output" if "output" in record or "response" not in record else "response"
    return (_string(where, record, "instruction"), _string(where, record, given, ""), _string(where, record, output),
            ("instruction", given, output))


def _alpaca(source: Source, records: Records, unused: Unused) -> Iterator[Document]:
    for where, record in records:
        instruction, given, answer, used = _alpaca_fields(where, record)
        template = ALPACA_WITH_INPUT if given else ALPACA_WITHOUT_INPUT
        preamble, turn = template.split("### Instruction:", 1)
        # LLaMA-Factory's fields: a system text in place of the preamble, and turns that came before.
        system = _string(where, record, "system", "")
        prompt = (system + "\n\n" if system else preamble) + _history(where, record)
        prompt += ("### Instruction:" + turn).format(instruction=instruction, input=given)
        unused.see(where, record, (*used, "system", "history"), prompt + answer)
        yield Document((prompt, answer), ((1, 0, len(answer)),) if source.label_mask == "answer" else None)


def _history(where: str, record: dict) -> str:
    """The turns of `history`, [[instruction, response], ...], as Alpaca's prompt writes one."""
    pairs, text = record.get("history"), ""
    if pairs is None or pairs == "":
        return text
    for index, pair in enumerate(pairs if isinstance(pairs, list) else [pairs]):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(said, str) for said in pair):
            raise UsageError(f"{where}: key 'history': expected a list of [instruction, response], found {kind(pair)} at "
                             f"{index}; write two strings there")
        asked, answered = (checked_text(where, f"key 'history', turn {index}", said) for said in pair)
        text += f"### Instruction:\n{asked}\n\n### Response:\n{answered}\n\n"
    return text


def _plain_records(source: Source, records: Records, unused: Unused) -> Iterator[Document]:
    for where, record in records:
        instruction, given, output, used = _alpaca_fields(where, record)
        prompt = f"{instruction}\n{given}\n"
        text = prompt + output
        unused.see(where, record, used, text)
        yield Document((text,), ((0, len(prompt), len(text)),) if source.label_mask == "answer" else None)


# ShareGPT's words for who speaks; the last three are LLaMA-Factory's.
SHAREGPT_ROLES = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
                  "function_call": "assistant", "observation": "tool", "tool": "tool"}
# Keys of an assistant's turn that may stand in place of its content.
IN_PLACE_OF_CONTENT = ("tool_calls", "function_call", "reasoning_content", "thinking", "reasoning")


def _turn(where: str, turn: dict) -> dict[str, Any]:
    """A message as a chat template takes it, from this spelling or from ShareGPT's, {"from", "value"}. A key with null is
    left out, as transformers does."""
    turn = {key: value for key, value in turn.items() if value is not None}
    if "from" not in turn:
        role = _string(where, turn, "role")
        if "content" not in turn and any(turn.get(key) for key in IN_PLACE_OF_CONTENT):
            return turn
        return {**turn, "role": role, "content": _content(where, turn, "content")}
    role = _string(where, turn, "from")
    if role not in SHAREGPT_ROLES:
        raise UsageError(f"{where}: key 'from': expected one of {', '.join(SHAREGPT_ROLES)}, found '{role}'")
    content = _content(where, turn, "content" if "value" not in turn and "content" in turn else "value")
    if role == "function_call":
        return {"role": "assistant", "content": "", "tool_calls": _tool_calls(where, content)}
    return {"role": SHAREGPT_ROLES[role], "content": content}


def _content(where: str, turn: dict, key: str) -> str | list[dict]:
    """A string, or a list of parts that all are text; a template gets them as they are."""
    parts = turn.get(key)
    if not isinstance(parts, list):
        return _string(where, turn, key)
    found = []
    for part in parts:
        part = {k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else {"type": kind(part)}
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise UsageError(f"{where}: key '{key}': expected text parts, {{\"type\": \"text\", \"text\": \"...\"}}, found "
                             f"{str(part.get('type'))!r}; a language model takes text only, so leave the record out")
        checked_text(where, f"key '{key}'", part["text"])
        found.append(part)
    return found


def _tool_calls(where: str, value: Any) -> list[dict]:
    """LLaMA-Factory's function_call, {"name", "arguments"} as JSON or a list of them, as transformers' tool_calls."""
    try:
        calls = json.loads(value)
    except (TypeError, ValueError, RecursionError):
        calls = None
    calls = [calls] if isinstance(calls, dict) else calls
    if not isinstance(calls, list) or not calls or not all(
            isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls):
        raise UsageError(f"{where}: role 'function_call': expected JSON as {{\"name\": \"...\", \"arguments\": {{...}}}}, "
                         f"found {str(value)[:60]!r}; mend the record or leave it out")
    return [{"type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}} for call in calls]


def _tools(where: str, record: dict, is_sharegpt: bool) -> list[dict] | None:
    """The functions of a record for the template, from a list or from JSON."""
    tools = record.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where}: key 'tools': not valid JSON ({error}); write a list of functions") from None
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"{where}: key 'tools': expected a list of objects, found {kind(tools)}; write a list of functions")
    # LLaMA-Factory's files name the functions alone; templates get OpenAI's {"type", "function"}.
    return [{"type": "function", "function": tool} if is_sharegpt and "name" in tool and "function" not in tool else tool
            for tool in tools]


def _messages(where: str, record: dict) -> tuple[list[dict], int, list[str]]:
    """(messages, the first that may be an answer, the fields they came from)."""
    key = next((key for key in TURNS if record.get(key) is not None), None)
    if key is None and isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list):
        lists = ["prompt", "completion"]  # TRL's
    else:
        lists = [key or "messages"]
    messages: list[dict] = []
    for name in lists:
        first = len(messages) if name == "completion" else 0
        if not isinstance(record.get(name), list) or not record[name]:
            raise UsageError(f"{where}: key '{name}': expected a list of turns ('messages', or 'conversations' as in "
                             f"ShareGPT), found {kind(record[name]) if name in record else 'nothing'}")
        for index, turn in enumerate(record[name]):
            place = f"{where}, '{name}' {index}"
            messages.append(_turn(*check_record(place, turn)))
    system = _string(where, record, "system", "")
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
        first += len(lists) > 1
    elif system and messages[0].get("content") != system:
        raise UsageError(f"{where}: key 'system' and the first turn both are system texts, and they differ; leave one out")
    return messages, first, [*lists, "system", "tools"]


def _chat(source: Source, records: Records, unused: Unused, render_chat: Callable[..., str]) -> Iterator[Document]:
    for where, record in records:
        messages, first_answer, used = _messages(where, record)
        tools = _tools(where, record, any(isinstance(t, dict) and t.get("from") is not None for t in record[used[0]]))

        def render(count: int, add_generation_prompt: bool = False) -> str:
            extra = {} if tools is None else {"tools": tools}
            try:
                return render_chat(messages[:count], add_generation_prompt, **extra)
            except UsageError as error:
                raise UsageError(f"{where}: {' '.join(str(error).split())}") from None
            except RecursionError:
                raise UsageError(f"{where}: values are nested too deeply for the chat template") from None

        text, answers = checked_text(where, "its chat", render(len(messages))), []
        for index, message in enumerate(messages):
            if isinstance(message.get("content"), list) and str(message["content"]) in text:
                raise UsageError(f"{where}: the model's chat template takes only strings, and the content of message "
                                 f"{index} is a list of parts, which it would print with its braces; write the text as "
                                 "a string")
            if source.label_mask == "answer" and index >= first_answer and message["role"] == "assistant":
                before, after = render(index, True), render(index + 1)
                if not (after.startswith(before) and text.startswith(after)):
                    raise UsageError(f"{where}: this chat template rewrites earlier turns, so answers cannot be masked; "
                                     "use label_mask = \"all\"")
                answers.append((0, len(before), len(after)))
        unused.see(where, record, used, text)
        if source.label_mask == "answer" and not answers:
            unused.say("", f"{where}: has no turn of the assistant, so label_mask = \"answer\" leaves it out")
        yield Document((text,), tuple(answers) if source.label_mask == "answer" else None, own_end=True)


def folded(records: Iterator[Document], shots: int) -> Iterator[Document]:
    """Each `shots` records as one document, as the examples of a few-shot prompt (LoLCATs' table 20); the last has the rest."""
    while group := list(islice(records, shots)):
        pieces: list[str] = []
        answers: list[tuple[int, int, int]] = []
        for record in group:
            if pieces and not record.own_end:
                pieces[-1] += BETWEEN_SHOTS
            answers += [(len(pieces) + piece, begin, end) for piece, begin, end in record.answers or ()]
            pieces += record.pieces
        yield replace(group[0], pieces=tuple(pieces), answers=None if group[0].answers is None else tuple(answers))


def _generated(source: Source, count_tokens: Callable[[str], int]) -> Iterator[Document]:
    for record in generated_records(source.path, source.format, count_tokens):
        text, answer = record["prompt"], f" {record['answer']}\n"
        yield Document((text, answer), ((1, 0, len(answer)),) if source.label_mask == "answer" else None)


def documents(source: Source, render_chat: Callable[..., str], on_bytes: OnBytes = lambda done: None,
              on_unused: OnUnused = lambda field, text: None, where: Range | None = None, piece: int | None = None,
              count_tokens: Callable[[str], int] = lambda text: len(text) // CHARACTERS_PER_TOKEN) -> Iterator[Document]:
    """The documents of one source in file order, read as they are asked for. UsageError names file and record.

    `where`: of these bytes alone. `piece`: a plain text comes in fragments of about so many characters, at most
    TEXT_PIECE_CHARACTERS. `count_tokens`: what the lengths of generated records are counted by.
    """
    records = _documents(source, render_chat, on_bytes, on_unused, where, piece, count_tokens)
    return folded(records, source.shots) if source.shots > 1 else records


def _documents(source: Source, render_chat: Callable[..., str], on_bytes: OnBytes, on_unused: OnUnused, where: Range | None,
               piece: int | None, count_tokens: Callable[[str], int]) -> Iterator[Document]:
    if source.format in GENERATED:
        return _generated(source, count_tokens)
    if source.format == "text":
        return _text(source, on_bytes, where, min(max(piece or TEXT_PIECE_CHARACTERS, 1 << 16), TEXT_PIECE_CHARACTERS))
    unused = Unused(source, on_unused)
    records = read_records(source.path, on_bytes) if where is None else read_lines(source.path, on_bytes, where)
    if source.format == "chat":
        return _chat(source, records, unused, render_chat)
    return {"jsonl": _jsonl, "alpaca": _alpaca, "records": _plain_records}[source.format](source, records, unused)
