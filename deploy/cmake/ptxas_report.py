#!/usr/bin/env python3
"""Runs a compiler's command line and turns what ptxas -v says of kernels into one line each.

  ptxas_report.py COMPILER ARGUMENTS...     CMake's CUDA_COMPILER_LAUNCHER of the kernels

Prints "sm_90a BackwardKeysKernel<128, 64, true, true>: 240 registers, 0 bytes spilled" to standard error and passes
everything else on. A kernel that spills at no more than 128 features fails the build: it would be slow, and no test would
see it. Exit code: the compiler's, or 1.
"""

from __future__ import annotations

import re
import subprocess
import sys

SPILLS_ALLOWED_ABOVE = 128  # features

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
SPILLS = re.compile(r"(\d+) bytes spill stores")
REGISTERS = re.compile(r"Used (\d+) registers")
NOISE = re.compile(r"ptxas info|bytes stack frame|^\s*$")


def demangle(names: list[str]) -> list[str]:
    try:
        return subprocess.run(["c++filt"], input="\n".join(names), text=True, capture_output=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return names


def short(name: str) -> tuple[str, int]:
    """A kernel's name as kernels/README.md writes it, and its features (0: not a shape's)."""
    kernel = re.search(r"cuda::(\w+Kernel)(?:<.*?Shape<(\d+), (\d+), (true|false)>"
                       r"(?:, (true|false|\([\w:]+\)\d)(?:, (true|false))?)?)?", name)
    if not kernel:
        return name, 0
    if numbers := re.search(r"cuda::(\w+Kernel<\d+(?:, (?:\d+|true|false))*>)", name):
        return numbers.group(1), 0
    arguments = [re.sub(r"\(.*\)", "", a) for a in kernel.groups()[1:] if a is not None]
    features = int(arguments[1]) * (2 if arguments[2] == "true" else 1) if arguments else 0
    return kernel.group(1) + ("<" + ", ".join(arguments) + ">" if arguments else ""), features


def main() -> int:
    run = subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, text=True, check=False)
    kernels: list[list] = []  # name, architecture, registers, spilled bytes
    for line in run.stderr.splitlines():
        if match := ENTRY.search(line):
            kernels.append([match.group(1), match.group(2), 0, 0])
        elif kernels and (match := SPILLS.search(line)):
            kernels[-1][3] = int(match.group(1))
        elif kernels and (match := REGISTERS.search(line)):
            kernels[-1][2] = int(match.group(1))
        if not NOISE.search(line) and not SPILLS.search(line):
            print(line, file=sys.stderr)
    failed = False
    for (_, architecture, registers, spilled), name in zip(kernels, demangle([k[0] for k in kernels])):
        kernel, features = short(name)
        print(f"{architecture} {kernel}: {registers} registers, {spilled} bytes spilled", file=sys.stderr)
        if spilled and features <= SPILLS_ALLOWED_ABOVE:
            print(f"error: {architecture} {kernel} spills at {features} features; allowed only above {SPILLS_ALLOWED_ABOVE}",
                  file=sys.stderr)
            failed = True
    return run.returncode or int(failed)


if __name__ == "__main__":
    sys.exit(main())
