"""What the Hugging Face edge scripts share: one error type, one way to end with it, safetensors bytes.

Exit codes are the project's: 0 ok, 1 failed, 2 usage (the user can mend it), 5 environment (a package is missing).
"""

from __future__ import annotations

import json
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 5


class UsageError(Exception):
    """Bad input. The message says what, which object, expected against found, and what to do."""


def run_main(main: Callable[[], int]) -> None:
    """Runs a script's main; an error of the user's is one line on stderr and exit code 2, never a traceback."""
    try:
        code = main()
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        code = EXIT_USAGE
    except ModuleNotFoundError as error:
        print(f"error: the Python package '{error.name}' is missing; run deploy/setup", file=sys.stderr)
        code = EXIT_ENVIRONMENT
    except OSError as error:
        print(f"error: {error.filename or 'input or output'}: {error.strerror or error}", file=sys.stderr)
        code = EXIT_FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


def read_json(path: Path) -> dict:
    """A JSON object from a file; UsageError if it is absent or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; is this a Hugging Face model directory?") from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}); the file is damaged or incomplete") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def write_json(path: Path, value: object) -> None:
    """Writes JSON as people read it, with a last newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_directory(reference: str) -> Path:
    """A directory as it is, or the snapshot of `org/name` in the local Hugging Face cache; never the network."""
    path = Path(reference).expanduser()
    if path.is_dir():
        return path
    if reference.count("/") == 1 and not reference.startswith((".", "/", "~")):
        home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
        hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
        repository = hub / ("models--" + reference.replace("/", "--"))
        ref = repository / "refs" / "main"
        if ref.is_file():
            snapshot = repository / "snapshots" / ref.read_text().strip()
            if snapshot.is_dir():
                return snapshot
        raise UsageError(f"{reference}: neither a directory nor in the Hugging Face cache {hub}; nothing is downloaded "
                         f"here: fetch it first (hf download {reference}) or give a directory")
    raise UsageError(f"{reference}: no such model directory")


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a safetensors file: where its bytes lie."""

    file: Path
    dtype: str  # safetensors' spelling: "BF16", "F32", ...
    shape: tuple[int, ...]
    begin: int  # absolute offset in the file
    num_bytes: int

    def read(self) -> bytes:
        with open(self.file, "rb") as stream:
            stream.seek(self.begin)
            data = stream.read(self.num_bytes)
        if len(data) != self.num_bytes:
            raise UsageError(f"{self.file}: truncated, {self.num_bytes - len(data)} bytes are missing")
        return data


def read_safetensors_header(path: Path) -> dict[str, StoredTensor]:
    """Names to places for one file; UsageError if the header is damaged or the file is shorter than it says."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, 100_000_000):
            raise UsageError(f"{path}: not a safetensors file (header of {length} bytes in a file of {size})")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise UsageError(f"{path}: damaged safetensors header ({error})") from None
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= size - 8 - length:
            raise UsageError(f"{path}: tensor {name} ends at byte {end} of {size - 8 - length}; the file is truncated")
        tensors[name] = StoredTensor(path, entry["dtype"], tuple(entry["shape"]), 8 + length + begin, end - begin)
    return tensors


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model directory, from model.safetensors or through model.safetensors.index.json."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index).get("weight_map", {})
        files = sorted(set(weight_map.values()))
        for name in files:
            if Path(name).name != name or not (directory / name).is_file():
                raise UsageError(f"{index}: names the weight file '{name}', which is not in {directory}")
        found = {k: v for name in files for k, v in read_safetensors_header(directory / name).items()}
        missing = sorted(set(weight_map) - set(found))
        if missing:
            raise UsageError(f"{index}: tensor {missing[0]} is in none of the weight files ({len(missing)} missing)")
        return found
    single = directory / "model.safetensors"
    if single.is_file():
        return read_safetensors_header(single)
    if list(directory.glob("*.bin")) or list(directory.glob("*.pt")):
        raise UsageError(f"{directory}: weights are .bin or .pt pickles; convert them to safetensors first")
    raise UsageError(f"{directory}: no model.safetensors and no model.safetensors.index.json")


def write_safetensors(path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...], Callable[[], bytes]]]) -> int:
    """Writes (name, dtype, shape, bytes-giver) in the given order and returns the file's size.

    The giver is called when its bytes are due, so that one tensor is in memory at a time. The file appears under its
    name only when it is complete.
    """
    width = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "BOOL": 1}
    entries, header, offset = list(tensors), {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, _ in entries:
        count = 1
        for extent in shape:
            count *= extent
        end = offset + count * width[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape, giver in entries:
            data = giver()
            begin, end = header[name]["data_offsets"]
            if len(data) != end - begin:
                raise ValueError(f"tensor {name}: {len(data)} bytes for {dtype}{list(shape)}")
            stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(partial, path)
    return path.stat().st_size
