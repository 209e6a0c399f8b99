"""Tokenizes one data section of a recipe into a tokens file (storage/README.md "Tokens file").

  make_tokens.py --section FILE.json --model DIR --out tokens/transfer.h5

FILE.json is the section as hedgerow resolved it: every key is there, and what is held out is decided (README.md). The same
input gives the same bytes.
stdout is JSON lines: {"event":"progress","stage":...,"phase":...,"progress":0..1} at most twice a second,
{"event":"warning","text":...} once for a field of a source that holds text and is not read, then {"event":"done",...}.
A wrong input is one line on stderr and exit code 2.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Iterator, Sequence

import h5py
import numpy as np
import xxhash

from common import UsageError, model_directory, partial_file, require_file, run_main
from model_tokenizer import ModelTokenizer
from packing import Ends, Packer, tokenize_documents
from reading import READ_BYTES, Range
from sources import Document, Source, documents
from split_sources import LEAST_SOUGHT_BYTES, Part, pack_in_proportion, split_sources


@dataclass(frozen=True)
class DataSection:
    """What storage/recipe/tokens_section.cpp writes: every field is given, and right."""

    stage: str  # transfer, finetune or evaluate
    text: str  # the name of the one of data.evaluate.texts that this is; "": the section's own split
    sources: tuple[Source, ...]
    seq_len: int
    validation_sequences: int
    max_sequences: int  # 0: all
    split: str  # documents or sequences
    add_bos: bool | str
    eos_token_id: int
    keep: str  # both parts, only the validation part, or all as validation
    held_out: int  # tokens at the end of the text that no stage trains on


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


def read_section(path: Path) -> DataSection:
    try:
        values = json.loads(require_file(path).read_text(encoding="utf-8"))
        sources = tuple(Source(**{**source, "path": Path(source["path"])}) for source in values["sources"])
        return DataSection(**{**values, "sources": sources})
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: is no data section as hedgerow writes it ({error})") from None


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


def tokenize(section: DataSection, tokenizer: ModelTokenizer) -> Sequences:
    """Documents to packed sequences, validation apart from training."""
    progress = Progress(section.stage, section.sources)
    warned: set[str] = set()

    def warn(_field: str, text: str) -> None:
        if text not in warned:  # the text may be read more than once
            warned.add(text)
            print(json.dumps({"event": "warning", "text": text}), flush=True)

    def read(number: int, where: Range | None = None, **how: Any) -> Iterator[Document]:
        return documents(section.sources[number], tokenizer.render_chat, functools.partial(progress.read, number), warn, where,
                         count_tokens=lambda text: len(tokenizer.encode(text)), **how)

    reads = [functools.partial(read, number) for number in range(len(section.sources))]
    ends = Ends(tokenizer.begin_of(section.add_bos), section.add_bos is True, end_token(section, tokenizer))
    count = section.validation_sequences
    parts = [Part(one, []) for one in reads]
    if section.held_out and section.split == "documents":
        progress.begin(f"tokenize {section.stage}, held-out end")
        parts = split_sources(section.sources, reads, section.held_out, tokenizer)
    train = Packer(section.seq_len)
    by_sequences = section.held_out > 0 and section.split == "sequences"
    # The last sequences can be known only once everything is packed; otherwise stop when there are enough.
    limit = 0 if by_sequences else section.max_sequences
    progress.begin(f"tokenize {section.stage}")
    if section.keep == "both" and limit:
        arrays = pack_in_proportion(parts, section.sources, section.seq_len, limit, tokenizer, ends)
    else:
        training = (document for part in parts for document in part.training())
        if section.keep == "validation" and not by_sequences:
            training = iter(())
        for document in tokenize_documents(training, tokenizer, ends):
            train.add(document)
            if limit and train.num_sequences >= limit:
                break
        arrays = train.arrays(limit)
    if by_sequences:
        if len(arrays[0]) <= count:
            raise UsageError(too_short(section, len(arrays[0])))
        valid = tuple(a[len(a) - count:] for a in arrays)
        # Another stage's sequences may be longer, and its last one may end up to one of ours later or earlier.
        held = count if section.held_out == count * section.seq_len else -(-section.held_out // section.seq_len) + 1
        arrays = tuple(a[:-held][:section.max_sequences or None] for a in arrays)
    else:
        held = Packer(section.seq_len)
        for document in tokenize_documents([d for part in parts for d in part.validation], tokenizer, ends):
            held.add(document)
        valid = held.arrays(count) if count else tuple(a[:0] for a in arrays)
        if len(valid[0]) < count:
            raise UsageError(too_short(section, len(valid[0])))
    if section.keep == "all":
        arrays, valid = tuple(a[:0] for a in arrays), tuple(a[:section.max_sequences or None] for a in arrays)
    elif section.keep == "validation":
        arrays = tuple(a[:0] for a in arrays)
    elif not len(arrays[0]):
        raise UsageError(too_short(section, 0))
    if not len(arrays[0]) + len(valid[0]):
        raise UsageError(too_short(section, 0))
    ids, mask, starts = (np.concatenate(pair) for pair in zip(arrays, valid))
    return Sequences(ids, mask, starts, len(arrays[0]))


def too_short(section: DataSection, found: int) -> str:
    names = ", ".join(str(s.path) for s in section.sources)
    if section.text:
        return (f"data.evaluate.texts: '{section.text}' ({names}) is shorter than one sequence of {section.seq_len} tokens; "
                "name a longer text, or lower data.evaluate.seq_len")
    return (f"data.{section.stage}: the sources ({names}) give {found} sequences of {section.seq_len} tokens, with "
            f"{section.validation_sequences} wanted for validation and at least one for training; add text, or lower seq_len "
            "or validation_sequences")


def reuse_tokens(section: DataSection) -> Sequences:
    """A source that is a tokens file already: checked, limited, and copied."""
    path = section.sources[0].path
    if len(section.sources) > 1:
        raise UsageError(f"data.{section.stage}.sources: a tokens file stands alone, found {len(section.sources)} sources")
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
        raise UsageError(f"{path}: sequences of {ids.shape[1]} tokens, but data.{section.stage}.seq_len is {section.seq_len}")
    limit = section.max_sequences or len(ids)
    train, valid = (slice(0, min(num_train, limit)), slice(num_train, len(ids)))
    if section.text:
        train, valid = slice(0, 0), slice(0, limit)
    elif section.keep != "both":
        train, valid = slice(0, 0), slice(num_train if num_train < len(ids) else 0, len(ids))
    kept = [np.concatenate([a[train], a[valid]]) for a in (ids, mask, starts)]
    return Sequences(kept[0], kept[1], kept[2], train.stop)


def content_hash(ids: np.ndarray, mask: np.ndarray, starts: np.ndarray) -> str:
    """XXH3-128 over the three datasets' bytes, in this order, little-endian."""
    hasher = xxhash.xxh3_128()
    for array, dtype in ((ids, "<i4"), (mask, "u1"), (starts, "u1")):
        hasher.update(np.ascontiguousarray(array, dtype=dtype).data)
    return hasher.hexdigest()


def file_hash(path: Path) -> str | None:
    """None of a file of which perhaps not all was read."""
    if path.stat().st_size >= LEAST_SOUGHT_BYTES:
        return None
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
    parser.add_argument("--section", required=True, type=Path, help="a data section as hedgerow resolved it (JSON)")
    parser.add_argument("--model", required=True, help="Hugging Face directory")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    begin = time.monotonic()
    section = read_section(options.section)
    tokenizer = ModelTokenizer(model_directory(options.model))
    is_tokenized = any(source.format == "tokens" for source in section.sources)
    sequences = reuse_tokens(section) if is_tokenized else tokenize(section, tokenizer)
    sequences.sources = [{"path": str(s.path), "format": s.format, "template": s.template, "label_mask": s.label_mask,
                          "weight": s.weight, **({"shots": s.shots} if s.shots > 1 else {}), "bytes": s.path.stat().st_size, "hash": file_hash(s.path)}
                         for s in section.sources]
    digest = write_tokens(options.out, sequences, tokenizer)
    total, seq_len = sequences.input_ids.shape
    print(json.dumps({"event": "done", "stage": section.stage, "path": str(options.out), "sequences": total,
                      "num_train": sequences.num_train, "seq_len": seq_len, "tokens": total * seq_len,
                      "documents": int(sequences.document_starts.sum()), "content_hash": digest,
                      "seconds": round(time.monotonic() - begin, 2)}))
    return 0


if __name__ == "__main__":
    run_main(main)
