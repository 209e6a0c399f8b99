"""Reads tables: CSV row by row, Parquet some hundred rows at a time; a record is a row, by the names of its columns."""

from __future__ import annotations

import csv
import importlib
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

from common import UsageError, require_file

CSV_CELL_CHARACTERS = 64 << 20
PARQUET_BATCH = 256


def optional_package(path: Path, package: str, what: str) -> Any:
    """pyarrow or zstandard, which only some files need."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        name = package.split(".")[0]
        raise UsageError(f"{path}: is {what}, which the Python package {name} reads, and it cannot be imported ({error}); "
                         f"install it: {sys.executable} -m pip install {name}") from None


def names(fields: Any) -> str:
    """Of a record's fields, for people: no more than 20."""
    listed = [repr(field) for field in fields]
    return ", ".join(listed[:20]) + (f" and {len(listed) - 20} more" if len(listed) > 20 else "")


def csv_records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[tuple[str, dict]]:
    """A record a row, named by the first one; every value is a string. A quoted one may hold line breaks."""
    csv.field_size_limit(CSV_CELL_CHARACTERS)
    # With its line break each, which belongs to a quoted cell.
    rows = csv.reader((line + "\n" for line in lines), delimiter=delimiter, strict=True)
    fields: list[str] | None = None
    while True:
        line = rows.line_num + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise UsageError(f"{path}:{line}: not valid CSV: {error}") from None
        if row is None:
            return
        if not row:
            continue
        if fields is None:
            fields = row
            if twice := [field for field in fields if fields.count(field) > 1]:
                raise UsageError(f"{path}:{line}: two columns are named {twice[0]!r}; rename one")
            other = next((mark for mark in (";", "\t", "|", ",") if len(fields) == 1 and mark in fields[0]), "")
            if other:
                raise UsageError(f"{path}:{line}: its columns are separated by {other!r}; expected {delimiter!r} "
                                 f"({'.tsv: tabs, ' if delimiter == chr(9) else ''}as in name,text); write it so")
            continue
        if len(row) != len(fields):
            raise UsageError(f"{path}:{line}: expected {len(fields)} values as the first line names ({names(fields)}), "
                             f"found {len(row)}; quote values that hold {delimiter!r}")
        yield f"{path}:{line}", dict(zip(fields, row))


def parquet_records(path: Path, on_bytes: Callable[[int], None]) -> Iterator[tuple[str, dict]]:
    """Some hundred rows at a time. Keys that Arrow added with null to make all objects of a column alike are left out."""
    require_file(path)
    parquet = optional_package(path, "pyarrow.parquet", "a Parquet file")
    size = path.stat().st_size
    try:
        with parquet.ParquetFile(path) as file:
            number, rows = 0, max(file.metadata.num_rows, 1)
            for batch in file.iter_batches(batch_size=PARQUET_BATCH):
                for record in batch.to_pylist():
                    yield f"{path}, row {number}", {key: _without_nulls(value) for key, value in record.items()}
                    number += 1
                on_bytes(size * number // rows)
    except UnicodeDecodeError:
        raise UsageError(f"{path}, row {number} or one of the next {PARQUET_BATCH}: a string is not UTF-8; "
                         "write the file anew") from None
    except (ValueError, OSError, NotImplementedError) as error:  # what pyarrow's own errors are
        if isinstance(error, OSError) and error.errno:
            raise
        raise UsageError(f"{path}: not a Parquet file that pyarrow reads ({' '.join(str(error).split())})") from None


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value
