"""Tokenizes one data section of a recipe into a tokens file (storage/README.md "Tokens file").

  make_tokens.py --recipe run.toml --model DIR --stage transfer|finetune|evaluate --out tokens/transfer.h5 [--base DIR]
                 [--text NAME]

--text NAME, with --stage evaluate: that one of data.evaluate.texts, whole, in place of the section's own split. Relative
source paths are taken from --base, by default the recipe's folder. The same input gives the same bytes.
stdout is JSON lines: {"event":"progress","stage":...,"phase":...,"progress":0..1} at most twice a second,
{"event":"warning","text":...} once for a field of a source that holds text and is not read, then {"event":"done",...}.
A wrong input is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Iterator, Sequence

import h5py
import numpy as np
import xxhash

from common import UsageError, model_directory, partial_file, require_file, run_main
from model_tokenizer import ModelTokenizer
from packing import Ends, Packer, split_documents, tokenize_documents
from reading import READ_BYTES
from sources import Document, Source, documents, parse_source

STAGES = ("transfer", "finetune", "evaluate")
SPLITS = ("documents", "sequences")


@dataclass(frozen=True)
class DataSection:
    """[data.<stage>] of the recipe; the fields and defaults of storage/recipe/recipe.hpp."""

    sources: tuple[Source, ...]
    seq_len: int = 1024
    validation_sequences: int = 8
    max_sequences: int = 0
    split: str = "documents"
    add_bos: bool | str = "auto"
    eos_token_id: int = -1
    # Tokens at the end of the text that no stage trains on: the most that a stage with these sources holds out.
    held_out: int = 0
    text: str = ""  # the name of the one of data.evaluate.texts that this is


class Progress:
    """JSON progress lines, at most one each half second, by the bytes of the sources that were read.

    The text may be read more than once; each time is a phase, of which the reader of these lines estimates the end anew.
    """

    def __init__(self, stage: str, sources: Sequence[Source]):
        self._stage, self._last, self._phase = stage, time.monotonic(), ""
        self._sizes = [s.path.stat().st_size if s.path.is_file() else 0 for s in sources]

    def begin(self, phase: str) -> None:
        self._phase = phase

    def read(self, source: int, done: int) -> None:
        now = time.monotonic()
        if now - self._last >= 0.5:
            self._last = now
            share = (sum(self._sizes[:source]) + done) / max(sum(self._sizes), 1)
            print(json.dumps({"event": "progress", "stage": self._stage, "phase": self._phase,
                              "progress": round(min(share, 1.0), 4)}), flush=True)


def read_section(recipe: Path, stage: str, base: Path, text: str = "") -> DataSection:
    """[data.<stage>], or with a name one of data.evaluate.texts as a section of its own, without a part held out.

    UsageError names the file and the key. The full strict check of a recipe is the C++ reader's."""
    try:
        data = tomllib.loads(require_file(recipe).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{recipe}: no such recipe") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{recipe}: {error}") from None
    tables = data.get("data", {})
    # As in storage/recipe/recipe.hpp: what finetune and evaluate leave out is transfer's.
    table = {**tables.get("transfer", {}), **tables.get(stage, {})}
    if not table:
        raise UsageError(f"{recipe}: section [data.{stage}] is missing")
    named = table.pop("texts", [])
    if text:
        return text_section(recipe, data, table, named, text, base)
    return section_of(recipe, data, stage, table, base)


def text_section(recipe: Path, data: dict[str, Any], table: dict[str, Any], named: Any, name: str, base: Path) -> DataSection:
    """UsageError also where a stage learns it, through links too."""
    found = [(i, entry) for i, entry in enumerate(named) if isinstance(entry, dict) and entry.get("name") == name]
    if not found:
        raise UsageError(f"{recipe}: data.evaluate.texts names no '{name}'")
    number, entry = found[0]
    source = {key: value for key, value in entry.items() if key not in ("name", "in_domain")}
    where = f"{recipe}: data.evaluate.texts[{number}]"
    parse_source(source, where, base)
    ours = texts([source], base)[0][0]
    tables = data.get("data", {})
    for stage in ("transfer", "finetune") if data.get("finetune", {}).get("enabled", True) else ("transfer",):
        learned = {**tables.get("transfer", {}), **tables.get(stage, {})}.get("sources")
        if ours in [path for path, *_ in texts(learned, base)]:
            raise UsageError(f"{where}.path names {source['path']}, which data.{stage} learns; what is held out of it is "
                             "evaluated as \"validation\", so name another text")
    alone = {**table, "sources": [source], "validation_sequences": 0}
    section = section_of(recipe, {"data": {"transfer": {}, "evaluate": alone}}, "evaluate", alone, base)
    return replace(section, text=name)


def section_of(recipe: Path, data: dict[str, Any], stage: str, table: dict[str, Any], base: Path) -> DataSection:
    types = {"seq_len": int, "validation_sequences": int, "max_sequences": int, "split": str,
             "add_bos": bool, "eos_token_id": int}
    values: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{recipe}: data.{stage}.{key}"
        if key == "sources":
            if not isinstance(value, list) or not value:
                raise UsageError(f"{name}: expected a list of at least one source")
            values[key] = tuple(parse_source(s, f"{name}[{i}]", base) for i, s in enumerate(value))
        elif key not in types:
            raise UsageError(f"{name} is not a known key; known: sources, {', '.join(types)}")
        elif type(value) is not types[key] and not (key == "add_bos" and value == "auto"):
            raise UsageError(f"{name}: expected {types[key].__name__}, found {value!r}")
        else:
            values[key] = value
    if "sources" not in values:
        raise UsageError(f"{recipe}: data.{stage}.sources is missing")
    section = DataSection(**values, held_out=held_out(recipe, data, stage, base))
    for key, least in (("seq_len", 2), ("validation_sequences", 0), ("max_sequences", 0), ("eos_token_id", -2)):
        if getattr(section, key) < least:
            raise UsageError(f"{recipe}: data.{stage}.{key}: expected at least {least}, found {getattr(section, key)}")
    if section.split not in SPLITS:
        raise UsageError(f"{recipe}: data.{stage}.split: '{section.split}' is not one of {', '.join(SPLITS)}")
    return section


def texts(sources: Any, base: Path) -> list[tuple]:
    """What a list of sources reads, whatever it leaves to defaults."""
    return [((base / Path(str(s.get("path"))).expanduser()).resolve(), s.get("format", "text"), s.get("template", ""))
            for s in sources or [] if isinstance(s, dict)]


def held_out(recipe: Path, data: dict[str, Any], own: str, base: Path) -> int:
    """Tokens at the end of the text that `own` may not learn: what it, or another stage with the same sources, is judged by.

    UsageError: another stage names a text of this one, but not the same list of sources; then the two would not hold out
    the same end of it. (The strict check of a whole recipe is storage/recipe/recipe.cpp's; this one sees through links.)
    """
    most, tables = 0, data.get("data", {})
    whole = {stage: {**tables.get("transfer", {}), **tables.get(stage, {})} for stage in STAGES
             if stage == own or stage in tables and (stage != "finetune" or data.get("finetune", {}).get("enabled", True))}
    ours = texts(whole[own].get("sources"), base)
    for stage, table in whole.items():
        lengths = [table.get(key, getattr(DataSection, key)) for key in ("validation_sequences", "seq_len")]
        theirs = texts(table.get("sources"), base)
        shared = [path for path, *_ in theirs if path in [p for p, *_ in ours]]
        if not shared or not all(type(length) is int for length in lengths):
            continue
        if stage == "evaluate" and own != "evaluate" and not lengths[0]:
            raise UsageError(f"{recipe}: data.evaluate.validation_sequences = 0 evaluates all of {shared[0]}, which "
                             f"data.{own} learns; set it to 1 or more, or name another text")
        twice = own != "evaluate" and len(set(shared)) < len(shared)
        if lengths[0] > 0 and (ours != theirs or twice):
            raise UsageError(f"{recipe}: data.{own} and data.{stage} both read {shared[0]}, but not the same list of sources "
                             "with each named once, so what one is judged by the other would learn; give both the same "
                             "list, or separate texts")
        most = max(most, lengths[0] * lengths[1])
    return most


@dataclass
class Sequences:
    """What goes into the file: int32 / uint8 arrays [sequences, seq_len], training sequences first."""

    input_ids: np.ndarray
    loss_mask: np.ndarray
    document_starts: np.ndarray
    num_train: int
    sources: list[dict] = field(default_factory=list)


def end_token(section: DataSection, tokenizer: ModelTokenizer) -> int | None:
    if section.eos_token_id == -2:
        return None
    token = tokenizer.eos_id if section.eos_token_id == -1 else section.eos_token_id
    if token is None:
        raise UsageError(f"{tokenizer.directory}: neither config.json nor the tokenizer has an end token; set eos_token_id in the data section "
                         "(-2: none)")
    if token >= tokenizer.vocab_size:
        raise UsageError(f"eos_token_id {token} is outside the vocabulary ({tokenizer.vocab_size} entries)")
    return token


def tokenize(section: DataSection, tokenizer: ModelTokenizer, stage: str) -> Sequences:
    """Documents to packed sequences, validation apart from training."""
    progress = Progress(stage, section.sources)
    warned: set[str] = set()

    def warn(_field: str, text: str) -> None:
        if text not in warned:  # the text may be read more than once
            warned.add(text)
            print(json.dumps({"event": "warning", "text": text}), flush=True)

    def read() -> Iterator[Document]:
        for number, source in enumerate(section.sources):
            yield from documents(source, tokenizer.render_chat, functools.partial(progress.read, number), warn)

    ends = Ends(tokenizer.begin_of(section.add_bos), section.add_bos is True, end_token(section, tokenizer))
    count = section.validation_sequences
    everything = stage == "evaluate" and count == 0
    training, validation = read, []
    holds_out = section.held_out > 0 and not everything
    if holds_out and section.split == "documents":
        progress.begin(f"tokenize {stage}, held-out end")
        split = split_documents(read, section.held_out, tokenizer)
        training, validation = lambda: split.training(read()), split.validation
    train = Packer(section.seq_len)
    by_sequences = holds_out and section.split == "sequences"
    # The last sequences can be known only once everything is packed; otherwise stop when there are enough.
    limit = 0 if by_sequences else section.max_sequences
    if stage != "evaluate" or by_sequences or everything:
        progress.begin(f"tokenize {stage}")
        for document in tokenize_documents(training(), tokenizer, ends):
            train.add(document)
            if limit and train.num_sequences >= limit:
                break
    arrays = train.arrays(limit)
    if by_sequences:
        if len(arrays[0]) <= count:
            raise UsageError(too_short(section, stage, len(arrays[0]), count))
        valid = tuple(a[len(a) - count:] for a in arrays)
        # Another stage's sequences may be longer, and its last one may end up to one of ours later or earlier.
        held = count if section.held_out == count * section.seq_len else -(-section.held_out // section.seq_len) + 1
        arrays = tuple(a[:-held][:section.max_sequences or None] for a in arrays)
    else:
        held = Packer(section.seq_len)
        for document in tokenize_documents(validation, tokenizer, ends):
            held.add(document)
        valid = held.arrays(count) if count else tuple(a[:0] for a in arrays)
        if len(valid[0]) < count:
            raise UsageError(too_short(section, stage, len(valid[0]), count))
    if everything:  # no training part: all of it is the evaluate split
        arrays, valid = tuple(a[:0] for a in arrays), tuple(a[:section.max_sequences or None] for a in arrays)
    elif stage == "evaluate":
        arrays = tuple(a[:0] for a in arrays)
    elif not len(arrays[0]):
        raise UsageError(too_short(section, stage, 0, count))
    if not len(arrays[0]) + len(valid[0]):
        raise UsageError(too_short(section, stage, 0, count))
    ids, mask, starts = (np.concatenate(pair) for pair in zip(arrays, valid))
    return Sequences(ids, mask, starts, len(arrays[0]))


def too_short(section: DataSection, stage: str, found: int, validation: int) -> str:
    names = ", ".join(str(s.path) for s in section.sources)
    if section.text:
        return (f"data.evaluate.texts: '{section.text}' ({names}) is shorter than one sequence of {section.seq_len} tokens; "
                "name a longer text, or lower data.evaluate.seq_len")
    return (f"data.{stage}: the sources ({names}) give {found} sequences of {section.seq_len} tokens, with {validation} "
            "wanted for validation and at least one for training; add text, or lower seq_len or validation_sequences")


def reuse_tokens(section: DataSection, tokenizer: ModelTokenizer, stage: str) -> Sequences:
    """A source that is a tokens file already: checked, limited, and copied."""
    path = section.sources[0].path
    if len(section.sources) > 1:
        raise UsageError(f"data.{stage}.sources: a tokens file stands alone, found {len(section.sources)} sources")
    try:
        with h5py.File(require_file(path), "r") as file:
            if file.attrs.get("hedgerow_format") != "tokens/1":
                raise UsageError(f"{path}: expected hedgerow_format 'tokens/1', found "
                                 f"{file.attrs.get('hedgerow_format')!r}")
            ids, mask, starts = (file[n][:] for n in ("input_ids", "loss_mask", "document_starts"))
            num_train, recorded = int(file.attrs["num_train"]), str(file.attrs["content_hash"])
    except FileNotFoundError:
        raise UsageError(f"{path}: no such tokens file") from None
    except (OSError, KeyError) as error:
        raise UsageError(f"{path}: not a readable tokens file ({error})") from None
    if (found := content_hash(ids, mask, starts)) != recorded:
        raise UsageError(f"{path}: content hash {found} != recorded {recorded}; the file is damaged, make it again")
    if ids.shape[1] != section.seq_len:
        raise UsageError(f"{path}: sequences of {ids.shape[1]} tokens, but data.{stage}.seq_len is {section.seq_len}")
    limit = section.max_sequences or len(ids)
    train, valid = (slice(0, min(num_train, limit)), slice(num_train, len(ids)))
    if section.text:
        train, valid = slice(0, 0), slice(0, limit)
    elif stage == "evaluate":
        train, valid = slice(0, 0), slice(num_train if num_train < len(ids) else 0, len(ids))
    kept = [np.concatenate([a[train], a[valid]]) for a in (ids, mask, starts)]
    return Sequences(kept[0], kept[1], kept[2], train.stop)


def content_hash(ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> str:
    """XXH3-128 over the three datasets' bytes, in this order, little-endian."""
    hasher = xxhash.xxh3_128()
    for array, dtype in ((ids, "<i4"), (mask, "u1"), (starts, "u1")):
        hasher.update(np.ascontiguousarray(array, dtype=dtype).data)
    return hasher.hexdigest()


def file_hash(path: Path) -> str:
    hasher = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(READ_BYTES):
            hasher.update(data)
    return hasher.hexdigest()


def write_tokens(path: Path, sequences: Sequences, tokenizer: ModelTokenizer) -> str:
    """Writes and fsyncs the file under its name when complete; returns the content hash."""
    outside = np.argwhere((sequences.input_ids < 0) | (sequences.input_ids >= tokenizer.vocab_size))
    if len(outside):
        row, column = outside[0]
        raise UsageError(f"token id {sequences.input_ids[row, column]} at sequence {row}, position {column} is outside the "
                         f"vocabulary ({tokenizer.vocab_size} entries); do tokenizer and model belong together?")
    digest = content_hash(sequences.input_ids, sequences.loss_mask, sequences.document_starts)
    # In memory first: HDF5 ends the process with SIGSEGV, whatever is caught, when a disk is full.
    with h5py.File(path.name, "w", driver="core", backing_store=False) as file:
        file.create_dataset("input_ids", data=sequences.input_ids.astype("<i4"))
        file.create_dataset("loss_mask", data=sequences.loss_mask.astype("u1"))
        file.create_dataset("document_starts", data=sequences.document_starts.astype("u1"))
        file.attrs["hedgerow_format"] = "tokens/1"
        file.attrs["num_train"] = np.int64(sequences.num_train)
        file.attrs["vocab_size"] = np.int64(tokenizer.vocab_size)
        file.attrs["tokenizer_hash"] = tokenizer.hash
        file.attrs["sources"] = json.dumps(sequences.sources, sort_keys=True)
        file.attrs["content_hash"] = digest
        file.flush()
        image = file.id.get_file_image()
    path.parent.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as partial:
        partial.write_bytes(image)
    return digest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", required=True, type=Path)
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--stage", required=True, choices=STAGES)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--base", type=Path, help="folder that relative source paths start from")
    parser.add_argument("--text", default="", metavar="NAME", help="one of data.evaluate.texts (with --stage evaluate)")
    options = parser.parse_args()
    begin = time.monotonic()
    if options.text and options.stage != "evaluate":
        raise UsageError(f"--text {options.text} goes with --stage evaluate, not with {options.stage}")
    section = read_section(options.recipe, options.stage, options.base or options.recipe.parent, options.text)
    tokenizer = ModelTokenizer(model_directory(options.model))
    make = reuse_tokens if any(s.format == "tokens" for s in section.sources) else tokenize
    sequences = make(section, tokenizer, options.stage)
    sequences.sources = [{"path": str(s.path), "format": s.format, "template": s.template, "label_mask": s.label_mask,
                          "bytes": s.path.stat().st_size, "hash": file_hash(s.path)}
                         for s in section.sources]
    digest = write_tokens(options.out, sequences, tokenizer)
    total, seq_len = sequences.input_ids.shape
    print(json.dumps({"event": "done", "stage": options.stage, "path": str(options.out), "sequences": total,
                      "num_train": sequences.num_train, "seq_len": seq_len, "tokens": total * seq_len,
                      "documents": int(sequences.document_starts.sum()), "content_hash": digest,
                      "seconds": round(time.monotonic() - begin, 2)}))
    return 0


if __name__ == "__main__":
    run_main(main)
