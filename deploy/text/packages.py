"""Debian packages in a folder of the cache: downloaded by apt-get, unpacked by dpkg-deb, never installed.

Every failure is an EnvironmentFault, one sentence that names the package and what to do.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class EnvironmentFault(Exception):
    """The machine lacks something: exit code 5."""


def find(name: str, folder: Path) -> Path | None:
    """The one .deb of that package in the folder."""
    found = sorted(folder.glob(f"{name}_*.deb"))
    if len(found) > 1:
        raise EnvironmentFault(f"package {name}: {folder} holds {len(found)} versions ({', '.join(path.name for path in found)}); keep one of them")
    return found[0] if found else None


def fetch(names: list[str], cache: Path, given: Path | None) -> dict[str, Path]:
    """Where the .deb of each package lies: in the folder that was given, in the cache, or downloaded into the cache."""
    places, missing = {}, []
    for name in names:
        path = find(name, given or cache)
        if path:
            places[name] = path
        else:
            missing.append(name)
    if missing and given:
        raise EnvironmentFault(f"package {missing[0]}: {given} has no {missing[0]}_*.deb; put there, by apt-get download on a machine "
                               f"with internet: {' '.join(missing)}")
    for name in missing:
        places[name] = _download(name, cache)
    return places


def _download(name: str, cache: Path) -> Path:
    if not shutil.which("apt-get"):
        raise EnvironmentFault(f"package {name}: no apt-get here to download it; on a Debian machine run apt-get download for all of "
                               "make_mixture.py --list-packages, and give their folder by --packages")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as work:
        sandbox = ["-o", "APT::Sandbox::User="] if os.geteuid() == 0 else []
        said = subprocess.run(["apt-get", "download", "-qq", *sandbox, name], cwd=work, capture_output=True, text=True, check=False)
        found = find(name, Path(work))
        if said.returncode or not found:
            lines = [line for line in said.stderr.splitlines() if line.startswith("E:")] or said.stderr.splitlines() or ["no file came"]
            raise EnvironmentFault(f"package {name}: apt-get download failed ({lines[0].removeprefix('E: ')}); run apt-get update as root, "
                                   "or give a folder that has the .deb by --packages")
        return Path(shutil.move(found, cache / found.name))


def version(name: str, deb: Path) -> str:
    return _dpkg_deb(name, deb, "-f", str(deb), "Version").strip()


def unpack(name: str, deb: Path, folder: Path) -> Path:
    target = folder / name
    target.mkdir()
    _dpkg_deb(name, deb, "-x", str(deb), str(target))
    return target


def _dpkg_deb(name: str, deb: Path, *words: str) -> str:
    if not shutil.which("dpkg-deb"):
        raise EnvironmentFault(f"package {name}: no dpkg-deb here to unpack it; install Debian's package dpkg")
    said = subprocess.run(["dpkg-deb", *words], capture_output=True, text=True, check=False)
    if said.returncode:
        raise EnvironmentFault(f"package {name}: {deb} cannot be read ({said.stderr.strip().splitlines()[-1:] or ['?']}); remove that file and run again")
    return said.stdout


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
