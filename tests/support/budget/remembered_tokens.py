"""make_tokens.py for tests: keeps the tokens that it makes, and copies them for a later call that asks for the same.

  remembered_tokens.py .../make_tokens.py --section FILE --model DIR --out FILE      in HEDGEROW_TEST_TOKENS, a folder

The same: the section's text, and the sizes and times of the model's files, of the sources and of the programs. What is not a plain
file there, what fails and what is asked for in other words goes to make_tokens.py itself and is not kept. Started by
remembering_python without site packages, which a copy does not need.
"""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import sys
from pathlib import Path

OUT = "\0out\0"  # stands for the file's path in what is said of it


def key_of(script: Path, section: Path, model: Path) -> str | None:
    text = section.read_text()
    sources = [Path(source["path"]) for source in json.loads(text)["sources"]]
    files = [*sorted(model.iterdir()), *sorted(script.parent.glob("*.py")), *sources]
    if not all(path.is_file() for path in files):
        return None
    stats = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([text, stats]).encode()).hexdigest()[:32]


class Tee:
    """stdout, whose text is also kept."""

    def __init__(self, stream) -> None:
        self.stream, self.text = stream, ""

    def write(self, text: str) -> int:
        self.text += text
        return self.stream.write(text)

    def __getattr__(self, name: str):
        return getattr(self.stream, name)


def make(words: list[str], kept: Path | None, out: Path) -> None:
    """make_tokens.py in this process, as Python starts a script; it ends the process where it fails."""
    import site
    site.main()
    sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
    said = sys.stdout = Tee(sys.stdout)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (0, None) or kept is None:
            raise
    if kept is not None:
        part = kept.with_name(f"{kept.name}.{os.getpid()}")
        part.mkdir(parents=True)
        shutil.copyfile(out, part / "tokens.h5")
        (part / "said").write_text(said.text.replace(json.dumps(str(out))[1:-1], OUT))
        try:
            part.rename(kept)
        except OSError:  # another was faster
            shutil.rmtree(part)


def give(kept: Path, out: Path) -> bool:
    part = out.with_name(f"{out.name}.remembered")
    try:
        shutil.copyfile(kept / "tokens.h5", part)
        part.rename(out)
    except OSError:  # make_tokens.py has the words for it
        return False
    sys.stdout.write((kept / "said").read_text().replace(OUT, json.dumps(str(out))[1:-1]))
    return True


def main() -> None:
    words = sys.argv[1:]
    options = dict(zip(words[1::2], words[2::2]))
    kept, out = None, Path(options.get("--out", ""))
    if set(options) == {"--section", "--model", "--out"} and len(words) == 7:
        try:
            key = key_of(Path(words[0]), Path(options["--section"]), Path(options["--model"]))
        except (OSError, ValueError, KeyError, TypeError):
            key = None
        if key:
            kept = Path(os.environ["HEDGEROW_TEST_TOKENS"]) / key
            if kept.is_dir() and give(kept, out):
                return
    make(words, kept, out)


if __name__ == "__main__":
    main()
