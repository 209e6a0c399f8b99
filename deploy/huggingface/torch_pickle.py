"""Reads tensors out of a torch.save file without PyTorch and without running anything the file says.

A .pt file is a zip archive: a pickle that names classes, and one raw file for each storage. Only the handful of names
that a dictionary of tensors needs is known here; any other name in the pickle is an error. (The same rule as
torch.load(weights_only=True), which would need a complete PyTorch.)
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from common import UsageError, require_file

# torch's storage classes: safetensors dtype and numpy type of the raw bits.
STORAGES = {"BFloat16Storage": ("BF16", "<u2"), "HalfStorage": ("F16", "<f2"), "FloatStorage": ("F32", "<f4"),
            "DoubleStorage": ("F64", "<f8"), "LongStorage": ("I64", "<i8"), "IntStorage": ("I32", "<i4")}


@dataclass(frozen=True)
class PickledTensor:
    """A tensor's values in the storage's own bits (bf16 as uint16), contiguous."""

    dtype: str
    bits: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.bits.shape

    def float32(self) -> np.ndarray:
        if self.dtype == "BF16":
            return (self.bits.astype(np.uint32) << 16).view(np.float32)
        return self.bits.astype(np.float32)


@dataclass(frozen=True)
class _StorageClass:
    name: str


class _Unpickler(pickle.Unpickler):
    """Knows ordered dictionaries, tensors and parameters; refuses every other name."""

    def __init__(self, data: bytes, archive: zipfile.ZipFile, prefix: str, path: Path):
        super().__init__(io.BytesIO(data))
        self._archive, self._prefix, self._path = archive, prefix, path
        self._loaded: dict[str, np.ndarray] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return lambda data, requires_grad, hooks: data
        if module == "torch" and name in STORAGES:
            return _StorageClass(name)
        raise UsageError(f"{self._path}: the pickle names {module}.{name}, which is not part of a dictionary of tensors; "
                         "the file is refused")

    def persistent_load(self, key: Any) -> tuple[str, np.ndarray]:
        if not (isinstance(key, tuple) and len(key) == 5 and key[0] == "storage" and isinstance(key[1], _StorageClass)):
            raise UsageError(f"{self._path}: an unknown kind of reference {str(key)[:60]!r} in the pickle")
        dtype, bits = STORAGES[key[1].name]
        name = str(key[2])
        if name not in self._loaded:
            try:
                data = self._archive.read(f"{self._prefix}/data/{name}")
            except KeyError:
                raise UsageError(f"{self._path}: storage {name} is missing in the archive") from None
            if len(data) != int(key[4]) * np.dtype(bits).itemsize:
                raise UsageError(f"{self._path}: storage {name}: {len(data)} bytes for {key[4]} values of {dtype}")
            self._loaded[name] = np.frombuffer(data, dtype=bits)
        return dtype, self._loaded[name]

    def _tensor(self, storage: tuple[str, np.ndarray], offset: int, size: tuple, stride: tuple, *_ignored: Any
                ) -> PickledTensor:
        dtype, values = storage
        last = offset + sum((n - 1) * s for n, s in zip(size, stride)) if all(size) else offset
        if offset < 0 or any(s < 0 for s in stride) or (all(size) and last >= len(values)):
            raise UsageError(f"{self._path}: a tensor of shape {list(size)} reaches beyond its storage")
        strides = tuple(s * values.itemsize for s in stride)
        view = np.lib.stride_tricks.as_strided(values[offset:], shape=tuple(size), strides=strides, writeable=False)
        return PickledTensor(dtype, np.ascontiguousarray(view))


def load_tensors(path: Path) -> dict[str, PickledTensor]:
    """The tensors of a torch.save file: a flat dictionary, or LoLCATs' {"model_state_dict": ..., "step": ...}."""
    try:
        with zipfile.ZipFile(require_file(path)) as archive:
            pickles = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise UsageError(f"{path}: not a torch.save archive (no data.pkl)")
            prefix = pickles[0].split("/")[0]
            order = f"{prefix}/byteorder"
            if order in archive.namelist() and archive.read(order) != b"little":
                raise UsageError(f"{path}: saved on a big-endian machine")
            value = _Unpickler(archive.read(pickles[0]), archive, prefix, path).load()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except zipfile.BadZipFile as error:
        raise UsageError(f"{path}: not a zip archive as torch.save writes since 1.6, or truncated ({error})") from None
    except (pickle.UnpicklingError, EOFError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path}: damaged pickle ({error})") from None
    if isinstance(value, dict) and isinstance(value.get("model_state_dict"), dict):
        value = value["model_state_dict"]
    if not isinstance(value, dict) or not value:
        raise UsageError(f"{path}: expected a dictionary of tensors, found {type(value).__name__}")
    for name, tensor in value.items():
        if not isinstance(name, str) or not isinstance(tensor, PickledTensor):
            raise UsageError(f"{path}: '{name}' is {type(tensor).__name__}, expected a tensor")
    return dict(value)
