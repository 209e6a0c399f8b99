"""What the Hugging Face edge scripts share: one error type, one way to end with it, safetensors bytes.

Exit codes are the project's: 0 ok, 1 failed, 2 usage (the user can mend it), 5 environment (a package is missing).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Iterable, Iterator

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 5


class UsageError(Exception):
    """Bad input. The message says what, which object, expected against found, and what to do."""


def explain(error: OSError) -> tuple[str, int]:
    """One line that says what to do, and the exit code: a full disk is the environment's, a place that may not be
    written the user's."""
    number = error.errno
    text = f"{error.filename or 'input or output'}: {error.strerror or error}"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return text + "; free space or raise the quota, then run the same command again", EXIT_ENVIRONMENT
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return text + "; check the path", EXIT_USAGE
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return text + "; choose a place this user may write, or fix its permissions", EXIT_USAGE
    return text, EXIT_FAILED


def require_file(path: Path) -> Path:
    """UsageError for what cannot be read as a file: a FIFO waits for a writer that may never come, a device may be
    without an end. A missing file is reported where it is opened."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return path
    kinds = {stat.S_IFREG: "", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    if kind := kinds.get(stat.S_IFMT(mode), "a device"):
        raise UsageError(f"{path}: is {kind}; name a regular file")
    return path


@contextlib.contextmanager
def partial_file(path: Path) -> Iterator[Path]:
    """A name beside `path`: what is written there gets its name when it is complete, and is removed when it fails, so
    that a full disk is not fuller after."""
    partial = path.with_name(path.name + ".partial")
    try:
        yield partial
        with open(partial, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        error.filename = error.filename or str(path)
        raise
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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
        text, code = explain(error)
        print(f"error: {text}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)


class JsonObject(dict):
    """The object of a JSON file; a key that is not there is an error that names it and the file."""

    def __init__(self, value: dict, path: Path):
        super().__init__(value)
        self._path = path

    def __missing__(self, key: str) -> None:
        raise UsageError(f"{self._path}: the key '{key}' is missing; is this the config of a supported model?")


def read_json(path: Path) -> JsonObject:
    """A JSON object from a file; UsageError if it is absent or not an object."""
    try:
        value = json.loads(require_file(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; is this a Hugging Face model directory?") from None
    except ValueError as error:
        raise UsageError(f"{path}: not valid JSON ({error}); the file is damaged or incomplete") from None
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return JsonObject(value, path)


def write_json(path: Path, value: object) -> None:
    """Writes JSON as people read it, with a last newline."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def model_directory(reference: str) -> Path:
    """A directory, all of whose files can be read. (A name of the Hugging Face cache is hedgerow's to find,
    storage/model/model_config.hpp, which passes the directory.)"""
    directory = Path(reference).expanduser()
    if not directory.is_dir():
        raise UsageError(f"{reference}: no such model directory; a name of the Hugging Face cache is not looked up here: give "
                         "the directory of its snapshot")
    for path in directory.iterdir():
        if not path.is_dir():
            require_file(path)
    return directory


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
    size = require_file(path).stat().st_size
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
    if not isinstance(header, dict):
        raise UsageError(f"{path}: damaged safetensors header (not a JSON object)")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        try:
            (begin, end), dtype, shape = entry["data_offsets"], str(entry["dtype"]), tuple(map(int, entry["shape"]))
            begin, end = int(begin), int(end)
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{path}: damaged safetensors header (tensor {name} without dtype, shape or offsets)") from None
        if not 0 <= begin <= end <= size - 8 - length:
            raise UsageError(f"{path}: tensor {name} ends at byte {end} of {size - 8 - length}; the file is truncated")
        tensors[name] = StoredTensor(path, dtype, shape, 8 + length + begin, end - begin)
    return tensors


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of a model directory, from model.safetensors or through model.safetensors.index.json."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        weight_map = read_json(index)["weight_map"]
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise UsageError(f"{index}: expected 'weight_map' to give each tensor a file; the file is damaged")
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
    with partial_file(path) as partial, open(partial, "wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name, dtype, shape, giver in entries:
            data = giver()
            begin, end = header[name]["data_offsets"]
            if len(data) != end - begin:
                raise ValueError(f"tensor {name}: {len(data)} bytes for {dtype}{list(shape)}")
            stream.write(data)
    return path.stat().st_size
