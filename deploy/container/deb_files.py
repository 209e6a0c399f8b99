#!/usr/bin/env python3
"""deb_files.py [--script postinst] FILE.deb: the package's files as a tar on stdout, or one of its scripts (nothing if it has none).
A .deb is an ar archive; this reads it where dpkg is not installed. Exit codes: 0 ok, 1 damaged, 5 a compression that is unknown here."""

from __future__ import annotations

import argparse
import io
import lzma
import shutil
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

MAGIC = b"!<arch>\n"
HEADER = 60


class UnknownCompression(Exception):
    """What is in the package may be sound; this machine cannot tell."""


def members(deb: bytes):
    """(name, bytes) of an ar archive. Raises ValueError if it is none."""
    if not deb.startswith(MAGIC):
        raise ValueError("no ar archive")
    at = len(MAGIC)
    while at + HEADER <= len(deb):
        name, size = deb[at : at + 16].decode().strip().rstrip("/"), int(deb[at + 48 : at + 58])
        at += HEADER
        if at + size > len(deb):
            raise ValueError(f"{name} ends early")
        yield name, deb[at : at + size]
        at += size + size % 2


def unpacked(name: str, data: bytes) -> bytes:
    if name.endswith(".xz"):
        return lzma.decompress(data)
    if name.endswith(".gz"):
        return zlib.decompress(data, wbits=31)
    if name.endswith(".zst"):
        if not shutil.which("zstd"):
            raise UnknownCompression(f"{name} is compressed with zstd, which is not installed here; install it")
        return subprocess.run(["zstd", "--decompress", "--stdout"], input=data, stdout=subprocess.PIPE, check=True).stdout
    if name.endswith(".tar"):
        return data
    raise UnknownCompression(f"{name} is compressed in a way that is unknown here (known: xz, gz, zst, none); unpack it with dpkg-deb")


def archive(deb: bytes, part: str) -> bytes:
    return next(unpacked(name, data) for name, data in members(deb) if name.startswith(part + ".tar"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("deb", type=Path)
    parser.add_argument("--script")
    options = parser.parse_args()
    try:
        deb = options.deb.read_bytes()
        if not options.script:
            sys.stdout.buffer.write(archive(deb, "data"))
            return 0
        with tarfile.open(fileobj=io.BytesIO(archive(deb, "control"))) as control:
            found = next((member for member in control if Path(member.name).name == options.script), None)
            if found:
                sys.stdout.buffer.write(control.extractfile(found).read())
        return 0
    except UnknownCompression as error:
        print(f"error: {options.deb}: {error}", file=sys.stderr)
        return 5
    except (ValueError, StopIteration, lzma.LZMAError, zlib.error, tarfile.TarError, subprocess.CalledProcessError) as error:
        print(f"error: {options.deb} is no Debian package: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
