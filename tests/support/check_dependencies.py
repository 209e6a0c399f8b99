#!/usr/bin/env python3
"""Checks what each top folder may know: third-party headers by its includes, our own libraries by what CMake links.

  check_dependencies.py SOURCE_DIR     exit 1 and one line a violation: "file:line: what; rule"
  check_dependencies.py --self-test    the checker finds a violation of every rule in a tree made for it

kernels link nothing of ours; storage nothing of ours and no LibTorch; the coordinator neither LibTorch, kernels nor
worker; the worker nothing of the coordinator but its wire library. HDF5, ZeroMQ, MPI and NCCL stay out of headers that
other headers include, so that no third-party name spreads. Includes of our own headers: check_layout.py.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TORCH = ("ATen/", "torch/", "c10/", "caffe2/")
CUDA = ("cuda", "cublas", "nccl")
SOCKETS = ("zmq", "boost/asio", "boost/beast")
MPI = ("mpi.h",)
HDF5 = ("hdf5.h", "H5")
NOT_IN_HEADERS = HDF5 + ("zmq", "mpi.h", "nccl.h")
SUFFIXES = {".hpp", ".cpp", ".cu", ".cuh", ".h", ".in"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


@dataclass(frozen=True)
class Rule:
    foreign: tuple[str, ...]  # prefixes that a system include must not have
    links: tuple[str, ...]  # words that the folder's CMakeLists.txt must not have


COORDINATOR = ("hedgerow::wire", "hedgerow::state", "hedgerow::coordinator")
RULES = {
    "kernels": Rule(HDF5 + SOCKETS + MPI + ("nlohmann/", "toml++/"),
                    COORDINATOR + ("hedgerow::storage", "hedgerow::worker")),
    "storage": Rule(TORCH + CUDA + SOCKETS + MPI,
                    COORDINATOR + ("hedgerow_torch", "hedgerow::kernels", "hedgerow::worker")),
    "coordinator": Rule(TORCH + CUDA + MPI + HDF5, ("hedgerow_torch", "hedgerow::kernels", "hedgerow::worker")),
    "worker": Rule((), ("hedgerow::state", "hedgerow::coordinator")),
}


@dataclass(frozen=True)
class Include:
    file: str  # relative to the top, as ours are included
    line: int
    is_ours: bool
    target: str


def includes_of(root: Path, path: Path) -> list[Include]:
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    matches = [(number, INCLUDE.match(line)) for number, line in lines]
    return [Include(path.relative_to(root).as_posix(), number, match[1] == '"', match[2])
            for number, match in matches if match]


def is_header(name: str) -> bool:
    return name.endswith((".hpp", ".cuh", ".h"))


def check_include(include: Include, shared_headers: set[str]) -> str | None:
    if include.is_ours:
        return None
    folder = include.file.split("/")[0]
    if include.target.startswith(RULES[folder].foreign):
        return f"includes <{include.target}>; {folder}/ must not know it"
    if include.file in shared_headers and include.target.startswith(NOT_IN_HEADERS):
        return f"includes <{include.target}>, and other headers include it; hide it behind a forward declaration"
    return None


def check_links(root: Path, top: str) -> list[str]:
    lists = root / top / "CMakeLists.txt"
    lines = lists.read_text(encoding="utf-8").splitlines() if lists.exists() else []
    return [f"{top}/CMakeLists.txt:{number}: names {word}; {top}/ must not link it"
            for number, line in enumerate(lines, 1) for word in RULES[top].links
            if re.search(re.escape(word) + r"\b", line.split("#")[0])]


def check_tree(root: Path) -> tuple[list[str], int]:
    files = [path for top in RULES for path in sorted((root / top).rglob("*")) if path.suffix in SUFFIXES]
    includes = [include for path in files for include in includes_of(root, path)]
    shared_headers = {include.target for include in includes if include.is_ours and is_header(include.file)}
    problems = []
    for include in includes:
        problem = check_include(include, shared_headers)
        if problem:
            problems.append(f"{include.file}:{include.line}: {problem}")
    for top in RULES:
        problems += check_links(root, top)
    return problems, len(files)


def self_test() -> None:
    violations = {
        "kernels/b.cpp": "#include <hdf5.h>",
        "kernels/CMakeLists.txt": "target_link_libraries(x PUBLIC hedgerow::storage)",
        "storage/b.cpp": "  #  include <ATen/ATen.h>",
        "storage/c.hpp": "#include <hdf5.h>",  # and storage/user.hpp includes it
        "coordinator/a.cpp": "#include <torch/types.h>",
        "coordinator/wire/a.cpp": "#include <hdf5.h>",
        "coordinator/CMakeLists.txt": "target_link_libraries(x PRIVATE hedgerow_torch)",
        "worker/CMakeLists.txt": "target_link_libraries(x PRIVATE hedgerow::coordinator)",
        "worker/comm/a.hpp": "#include <mpi.h>",  # and worker/comm/user.hpp includes it
    }
    allowed = {
        "kernels/good.cpp": "#include <ATen/ATen.h>\n#include <cuda_runtime.h>\n",
        "storage/good.cpp": '#include <hdf5.h>\n#include "storage/files/file.hpp"\n// #include "worker/x.hpp"\n',
        "storage/private.hpp": "#include <hdf5.h>",
        "storage/user.hpp": '#include "storage/c.hpp"',
        "worker/comm/user.hpp": '#include "worker/comm/a.hpp"',
        "coordinator/good.cpp": '#include <zmq.h>\n#include "coordinator/wire/messages.hpp"\n',
        "worker/good.cpp": '#include <mpi.h>\n#include "coordinator/wire/messages.hpp"\n',
    }
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, text in (violations | allowed).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text + "\n", encoding="utf-8")
        problems, _ = check_tree(root)
    found = {problem.split(":")[0] for problem in problems}
    if found != set(violations) or len(problems) != len(violations):
        sys.exit(f"missed: {sorted(set(violations) - found)}\nwrongly found: {sorted(found - set(violations))}")
    print(f"all {len(violations)} violations found, {len(allowed)} allowed files passed")


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--self-test":
        self_test()
        return
    problems, num_files = check_tree(Path(sys.argv[1]))
    if num_files == 0:
        sys.exit(f"{sys.argv[1]}: no source files; pass the top of the source tree")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{num_files} files include and link nothing that their top folder must not know")


if __name__ == "__main__":
    main()
