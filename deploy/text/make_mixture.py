#!/usr/bin/env python3
"""Makes one mixture of several kinds of English text from Debian packages, in ${HEDGEROW_CACHE:-~/.cache/hedgerow}/data/mixture.

Nothing is installed, no root is needed; nothing is written outside the cache folder. What is there already is left alone.
Exit codes: 0 ok, 1 failed, 2 usage, 4 interrupted (run it again), 5 the machine or a package lacks something (said what).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import kinds
import mixing
import packages

HERE = Path(__file__).resolve().parent
MODULES = ("formats.py", "kinds.py", "make_mixture.py", "markup.py", "mixing.py", "packages.py")


class Interrupted(Exception):
    pass


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="deploy/text/make_mixture.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens of mixture.txt, about; without, all there is")
    parser.add_argument("--piece-tokens", type=int, metavar="N", default=2000, help="tokens before another kind's turn comes (default 2000)")
    parser.add_argument("--packages", type=Path, metavar="FOLDER", help="take the .deb files from there and download nothing")
    parser.add_argument("--list-packages", action="store_true", help="the packages' names, one a line, and nothing else")
    given = parser.parse_args()
    if given.tokens is not None and given.tokens < 1000:
        parser.error(f"--tokens {given.tokens}: at least 1000")
    if given.piece_tokens < 100:
        parser.error(f"--piece-tokens {given.piece_tokens}: at least 100")
    if given.packages and not given.packages.is_dir():
        parser.error(f"--packages {given.packages}: no such folder")
    return given


def identity(given: argparse.Namespace) -> dict:
    """What a mixture that is there must have been made with."""
    program = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in MODULES)).hexdigest()
    return {"program": program, "tokens": given.tokens, "piece_tokens": given.piece_tokens}


def is_complete(target: Path, wanted: dict, given: Path | None) -> bool:
    """Whether the card is of the same call and every file is what the card says."""
    try:
        card = json.loads((target / "card.json").read_text("utf-8"))
        if card["made_with"] != wanted:
            return False
        if given and any(packages.sha256(path) != card["packages"][name]["sha256"]
                         for name in kinds.PACKAGES if (path := packages.find(name, given))):
            return False
        return all((target / name).stat().st_size == file["bytes"] and packages.sha256(target / name) == file["sha256"]
                   for name, file in card["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def unpacked(debs: dict[str, Path], work: Path) -> tuple[kinds.Folders, dict[str, dict]]:
    """The folder of each package, and what the card says of it."""
    folders, described = {}, {}
    for name, deb in debs.items():
        package = kinds.PACKAGES[name]
        described[name] = {"version": packages.version(name, deb), "upstream": package.upstream, "licence": package.licence,
                           "sha256": packages.sha256(deb)}
        folders[name] = packages.unpack(name, deb, work)
    return folders, described


def read_package(name: str, described: dict, work):
    """What `work` reads from that package; an error of its files becomes one that names it."""
    try:
        return work()
    except Interrupted:
        raise
    except Exception as error:  # whatever a reader trips over, the cause is the package
        what = str(error) if isinstance(error, (OSError, ValueError)) else repr(error)
        raise packages.EnvironmentFault(f"package {name} {described[name]['version']}: its files are not as expected ({what}); this program "
                                        "knows Debian 12's, give that one by --packages") from error


def held_out_texts(folders: kinds.Folders, described: dict) -> dict[str, str]:
    return {name: read_package(package, described, lambda name=name: kinds.read_held_out(name, folders))
            for name, (package, _) in kinds.HELD_OUT.items()}


def training_texts(folders: kinds.Folders, described: dict, sieve: mixing.Filter) -> dict[str, list[str]]:
    """The documents of each kind; `described` learns how many bytes each package gave."""
    texts: dict[str, list[str]] = {}
    for kind in kinds.KINDS:
        texts[kind.name] = []
        for package in kind.packages:
            one = kinds.Kind(kind.name, kind.share, (package,), kind.what)
            documents = [clean for _, document in read_package(package, described, lambda one=one: list(kinds.read(one, folders)))
                         if (clean := sieve.clean(document))]
            described[package]["bytes"] = sum(mixing.size(document) + 2 for document in documents)
            check_amount(package, described)
            texts[kind.name] += documents
    total = sum(mixing.size(document) + 2 for documents in texts.values() for document in documents)
    for kind in kinds.KINDS:
        if kind.most < 1.0:
            rest = total - sum(mixing.size(document) + 2 for document in texts[kind.name])
            texts[kind.name] = mixing.evenly(texts[kind.name], int(rest * kind.most / (1 - kind.most)))
            described[kind.packages[0]]["bytes"] = sum(mixing.size(document) + 2 for document in texts[kind.name])
    return texts


def check_amount(package: str, described: dict) -> None:
    found, expected = described[package]["bytes"], kinds.PACKAGES[package].at_least
    if found < expected:
        raise packages.EnvironmentFault(f"package {package} {described[package]['version']}: {found} bytes of text in it, at least {expected} "
                                        "expected; this program knows Debian 12's, give that one by --packages")


def tokens(bytes_: int) -> int:
    return round(bytes_ / mixing.BYTES_PER_TOKEN)


def write_all(work: Path, texts: dict[str, list[str]], held_out: dict[str, str], mixed: list[tuple[str, str]]) -> dict[str, dict]:
    """The text files below `work`; name: bytes, tokens, SHA-256."""
    contents = {f"{name}.txt": "\n\n".join(documents) for name, documents in texts.items()}
    contents |= {f"held_out/{name}.txt": text for name, text in held_out.items()}
    contents["mixture.txt"] = "\n\n".join(piece for _, piece in mixed)
    (work / "held_out").mkdir(parents=True)
    files = {}
    for name, text in contents.items():
        content = (text + "\n").encode()
        (work / name).write_bytes(content)
        files[name] = {"bytes": len(content), "tokens": tokens(len(content)), "sha256": hashlib.sha256(content).hexdigest()}
    return files


def make_card(wanted: dict, described: dict, files: dict, mixed: list[tuple[str, str]], sieve: mixing.Filter) -> dict:
    in_mixture = {kind.name: sum(mixing.size(piece) + 2 for name, piece in mixed if name == kind.name) for kind in kinds.KINDS}
    total = sum(in_mixture.values())
    return {
        "format": "hedgerow-mixture/1", "made_with": wanted, "bytes_per_token": mixing.BYTES_PER_TOKEN, "packages": described, "files": files,
        "kinds": {kind.name: {"what": kind.what, "packages": list(kind.packages), "wished_share": kind.share,
                              "share": round(in_mixture[kind.name] / total, 4), "bytes_in_mixture": in_mixture[kind.name],
                              **files[f"{kind.name}.txt"]} for kind in kinds.KINDS},
        "held_out": {name: {"what": what, "package": package, **files[f"held_out/{name}.txt"]} for name, (package, what) in kinds.HELD_OUT.items()},
        "left_out_bytes": sieve.dropped,
    }


def card_page(card: dict) -> str:
    lines = ["# Mixture of English text from Debian packages", "",
             f"`mixture.txt`: {card['files']['mixture.txt']['bytes']:,} bytes, about {card['files']['mixture.txt']['tokens']:,} tokens "
             f"({card['bytes_per_token']} bytes a token), SHA-256 `{card['files']['mixture.txt']['sha256']}`, cut into pieces of about {card['made_with']['piece_tokens']:,} tokens. Made by "
             "`deploy/text/make_mixture.py`; `card.json` is this page for programs.", "",
             "| kind | share | bytes in the mixture | bytes of its file | tokens of its file | SHA-256, 16 digits | what |",
             "| --- | ---: | ---: | ---: | ---: | --- | --- |"]
    lines += [f"| `{name}.txt` | {kind['share']:.1%} | {kind['bytes_in_mixture']:,} | {kind['bytes']:,} | {kind['tokens']:,} | `{kind['sha256'][:16]}` | "
              f"{kind['what']} |" for name, kind in card["kinds"].items()]
    lines += ["", "| held out, in no other file | bytes | tokens | SHA-256, 16 digits | what |", "| --- | ---: | ---: | --- | --- |"]
    lines += [f"| `held_out/{name}.txt` | {text['bytes']:,} | {text['tokens']:,} | `{text['sha256'][:16]}` | {text['what']} |"
              for name, text in card["held_out"].items()]
    lines += ["", "| package | version | licence | upstream | bytes taken |", "| --- | --- | --- | --- | ---: |"]
    lines += [f"| {name} | {package['version']} | {package['licence']} | {package['upstream']} | {package.get('bytes', 0):,} |"
              for name, package in card["packages"].items()]
    dropped = card["left_out_bytes"]
    lines += ["", f"Left out: {dropped['notice']:,} bytes of licence notices, {dropped['signs']:,} of pictures and tables made of signs, {dropped['repeated']:,} of paragraphs that came before, "
              f"{dropped['held_out']:,} of paragraphs that share eight words or more in a row with a held-out text. WikiText-2 is in none of these files. "
              "`licences/` has the copyright file of each package.", ""]
    return "\n".join(lines)


def copy_licences(folders: kinds.Folders, work: Path, files: dict) -> None:
    import formats
    (work / "licences").mkdir()
    for name, folder in folders.items():
        found = sorted(path for path in (folder / "usr/share/doc" / name).glob("copyright*") if path.is_file())
        content = (formats.read_text(found[0]) if found else f"{name} has no copyright file.\n").encode()
        (work / "licences" / name).write_bytes(content)
        files[f"licences/{name}"] = {"bytes": len(content), "tokens": tokens(len(content)), "sha256": hashlib.sha256(content).hexdigest()}


def publish(made: Path, target: Path, files: list[str]) -> None:
    """Moves the files to their names, the card last: without it nothing counts as complete."""
    (target / "card.json").unlink(missing_ok=True)
    for name in [*files, "CARD.md", "card.json"]:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(made / name, target / name)


def make(given: argparse.Namespace, cache: Path, target: Path, wanted: dict) -> dict:
    data = target.parent
    with tempfile.TemporaryDirectory(prefix="mixture-partial-", dir=data) as holder:
        work = Path(holder)
        print("packages", flush=True)
        debs = packages.fetch(list(kinds.PACKAGES), cache / "packages", given.packages)
        (work / "unpacked").mkdir()
        folders, described = unpacked(debs, work / "unpacked")
        print("texts", flush=True)
        held_out = held_out_texts(folders, described)
        for name, text in held_out.items():
            described[kinds.HELD_OUT[name][0]]["bytes"] = mixing.size(text)
        check_amount("dict-devil", described)
        sieve = mixing.Filter(mixing.windows(held_out.values()))
        texts = training_texts(folders, described, sieve)
        print("mixture", flush=True)
        target_bytes = round(given.piece_tokens * mixing.BYTES_PER_TOKEN)
        mixed = mixing.interleave({name: mixing.pieces(documents, target_bytes) for name, documents in texts.items()},
                                  {kind.name: kind.share for kind in kinds.KINDS},
                                  None if given.tokens is None else round(given.tokens * mixing.BYTES_PER_TOKEN))
        made = work / "made"
        files = write_all(made, texts, held_out, mixed)
        copy_licences(folders, made, files)
        card = make_card(wanted, described, files, mixed, sieve)
        (made / "card.json").write_text(json.dumps(card, indent=1) + "\n", "utf-8")
        (made / "CARD.md").write_text(card_page(card), "utf-8")
        publish(made, target, list(files))
    return card


def run(given: argparse.Namespace) -> int:
    cache = Path(os.environ.get("HEDGEROW_CACHE") or Path.home() / ".cache/hedgerow")
    target = cache / "data/mixture"
    wanted = identity(given)
    try:
        target.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / "mixture.lock").open("a")
    except OSError as error:
        raise packages.EnvironmentFault(f"{target} cannot be made ({error.strerror}); set HEDGEROW_CACHE to a folder where you may write") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second call waits and then finds all there
        if is_complete(target, wanted, given.packages):
            print(f"mixture: complete ({target})")
            return 0
        for left in target.parent.glob("mixture-partial-*"):  # of a call that was killed
            shutil.rmtree(left, ignore_errors=True)
        card = make(given, cache, target, wanted)
    for name, kind in card["kinds"].items():
        print(f"  {name:14} {kind['share']:6.1%}  {tokens(kind['bytes_in_mixture']):9,} tokens of {kind['tokens']:,}")
    print(f"mixture: {card['files']['mixture.txt']['tokens']:,} tokens in {target}/mixture.txt; what is in it: CARD.md there")
    return 0


def main() -> int:
    given = options()
    if given.list_packages:
        print("\n".join(kinds.PACKAGES))
        return 0

    def interrupt(*_):
        raise Interrupted
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        return run(given)
    except Interrupted:
        print("deploy/text/make_mixture.py: interrupted; run it again", file=sys.stderr)
        return 4
    except packages.EnvironmentFault as error:
        print(f"error: deploy/text/make_mixture.py: {error}", file=sys.stderr)
        return 5
    except OSError as error:
        print(f"error: deploy/text/make_mixture.py: {error}; is the disk full?", file=sys.stderr)
        return 5


if __name__ == "__main__":
    sys.exit(main())
