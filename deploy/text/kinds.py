"""What the mixture is made of: the packages, and for each kind of text the documents that are read from them.

A document is a string of paragraphs with a blank line between two. `read(kind, folders)` gives (source, document) in an order
that depends on the packages alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import formats
import markup

Folders = dict[str, Path]  # where each package was unpacked
NOVEL_HELD_OUT = "persuasion"


@dataclass(frozen=True)
class Package:
    name: str
    upstream: str
    licence: str
    at_least: int  # bytes of plain text, two thirds of what Debian 12's gives; less means that the package is another


PACKAGES = {package.name: package for package in (
    Package("anarchism", "https://0xacab.org/ju/afaq (An Anarchist FAQ)", "GPL-2", 7_400_000),
    Package("sword-comm-tdavid", "http://archive.spurgeon.org/treasury/ (C. H. Spurgeon, The Treasury of David, 1869-1885)", "public domain",
            7_900_000),
    Package("sword-comm-mhcc", "https://ccel.org/ccel/h/henry/mhcc (Matthew Henry's Concise Commentary)", "public domain", 2_600_000),
    Package("r-cran-janeaustenr", "https://cran.r-project.org/package=janeaustenr (Jane Austen, six novels, from Project Gutenberg)",
            "MIT; the novels are in the public domain", 2_400_000),
    Package("dict-foldoc", "http://foldoc.org (Free On-line Dictionary of Computing, Denis Howe)", "GFDL-1.1+", 2_400_000),
    Package("jargon-text", "http://www.catb.org/~esr/jargon/ (The Jargon File 4.4.7)", "public domain", 870_000),
    Package("perl-doc", "https://www.cpan.org/src/5.0/ (Perl's manual)", "GPL-1+ or Artistic", 2_400_000),
    Package("git-doc", "https://www.kernel.org/pub/software/scm/git/ (Git's manual)", "GPL-2; docs of reftable BSD-3-clause", 1_700_000),
    Package("debian-policy", "https://salsa.debian.org/dbnpolicy/policy (Debian Policy, and the FHS by the Linux Foundation)",
            "GPL-2+; FHS its own notice; copyright-format its notice; debconf BSD-3-clause", 410_000),
    Package("debian-reference-en", "https://salsa.debian.org/debian/debian-reference (Osamu Aoki)", "GPL-2+", 260_000),
    Package("doc-debian", "https://www.debian.org (Debian's constitution, social contract, bug tracking)", "GPL, OPL-1.0", 110_000),
    Package("wordnet-base", "http://wordnet.princeton.edu (WordNet 3.0)", "WordNet 3.0 (permissive; its notice is in licences/)", 2_800_000),
    Package("fortunes-min", "fortune-mod (aphorisms of many authors)", "BSD-3-clause; of the quotations no licence is stated", 65_000),
    Package("fortunes", "fortune-mod (aphorisms of many authors)", "BSD-3-clause; of the quotations no licence is stated", 1_150_000),
    Package("dict-devil", "http://wiretap.area.com/Gopher/Library/Classic/devils.txt (Ambrose Bierce, The Devil's Dictionary, 1911)",
            "public domain", 240_000),
)}


@dataclass(frozen=True)
class Kind:
    name: str        # of its file
    share: float     # of the mixture, while the text lasts
    packages: tuple[str, ...]
    what: str
    most: float = 1.0  # of all text, also in the kind's own file


KINDS = (
    Kind("treatise", 0.30, ("anarchism",), "essays on politics, economics and history"),
    Kind("commentary", 0.20, ("sword-comm-tdavid", "sword-comm-mhcc"), "prose of the 18th and 19th century, many quotations"),
    Kind("novels", 0.15, ("r-cran-janeaustenr",), "five novels of Jane Austen"),
    Kind("encyclopaedia", 0.15, ("dict-foldoc", "jargon-text"), "entries on computing, and nine tenths of the Jargon File"),
    Kind("manuals", 0.15, ("perl-doc", "git-doc", "debian-policy", "debian-reference-en", "doc-debian"), "technical prose with short listings"),
    Kind("dictionary", 0.03, ("wordnet-base",), "definitions with examples", 0.05),
    Kind("aphorisms", 0.02, ("fortunes-min", "fortunes"), "quotations and short jokes"),
)

HELD_OUT = {  # name: (package, what)
    "persuasion": ("r-cran-janeaustenr", "Jane Austen, Persuasion, whole"),
    "devils-dictionary": ("dict-devil", "Ambrose Bierce, The Devil's Dictionary, whole"),
    "jargon-end": ("jargon-text", "the last tenth of the Jargon File"),
}


def read(kind: Kind, folders: Folders) -> Iterator[tuple[str, str]]:
    for package in kind.packages:
        for paragraphs in _READERS[package](folders[package]):
            if paragraphs:
                yield package, "\n\n".join(paragraphs)


def read_held_out(name: str, folders: Folders) -> str:
    package = HELD_OUT[name][0]
    if name == "persuasion":
        return "\n\n".join(novels(folders[package])[NOVEL_HELD_OUT])
    if name == "jargon-end":
        return "\n\n".join(_jargon_parts(folders[package])[1])
    return "\n\n".join(paragraph for entry in _devil(folders[package]) for paragraph in entry)


def _doc(folder: Path, package: str) -> Path:
    return folder / "usr/share/doc" / package


def _anarchism(folder: Path) -> Iterator[list[str]]:
    wanted = re.compile(r"(sec[A-J](\d+|int)|append\d+(int)?|intro|vol\dintro|10years)\.md(\.gz)?")
    for path in _sorted((_doc(folder, "anarchism") / "markdown").iterdir(), wanted):
        yield markup.markdown(formats.read_text(path))


def _sorted(paths: Iterator[Path], wanted: re.Pattern) -> list[Path]:
    """By name, numbers by their value, a package's choice of .gz aside."""
    def key(path: Path) -> list:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name.removesuffix(".gz"))]
    return sorted((path for path in paths if wanted.fullmatch(path.name)), key=key)


def _sword(module: str, extension: str):
    def documents(folder: Path) -> Iterator[list[str]]:
        base = folder / "usr/share/sword/modules/comments/zcom" / module
        for testament in ("ot", "nt"):
            for block in formats.read_zcom(base / testament, extension):
                for chapter in re.split(r"(?=<chapter\b[^>]*sID)", block):
                    yield [paragraph for paragraph in markup.osis(chapter) if len(paragraph) > 1]
    return documents


def novels(folder: Path) -> dict[str, list[str]]:
    """Title in lower case: paragraphs, headings included."""
    found = {}
    for lines in formats.read_rdb(folder / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"):
        paragraphs = [re.sub(r"(?<!\w)_|_(?!\w)", "", markup.join_lines(run)) for run in markup.blocks("\n".join(lines))]
        if paragraphs:
            found[paragraphs[0].lower()] = paragraphs
    if NOVEL_HELD_OUT not in found:
        raise ValueError(f"Rdata.rdb has no novel '{NOVEL_HELD_OUT}', only: {', '.join(found)}")
    return found


def _training_novels(folder: Path) -> Iterator[list[str]]:
    for title, paragraphs in sorted(novels(folder).items()):
        if title != NOVEL_HELD_OUT:
            yield paragraphs


def _foldoc(folder: Path) -> Iterator[list[str]]:
    base = folder / "usr/share/dictd"
    for word, entry in formats.read_dictd(base / "foldoc.dict.dz", base / "foldoc.index"):
        # Entries from the Jargon File would bring what of it is held out.
        if word.startswith("00") or "Jargon File" in entry or re.match(r"\s*(GNU Free Documentation License|Missing definition)", entry):
            continue
        paragraphs = _foldoc_paragraphs(entry)
        if sum(map(len, paragraphs[1:])) >= 100:
            yield paragraphs


def _foldoc_paragraphs(entry: str) -> list[str]:
    head, _, body = entry.strip("\n").partition("\n\n")
    paragraphs = [", ".join(name for line in head.split("\n") for name in line.split("%%%") if name.strip())]
    for run in markup.blocks(body):
        text = markup.join_lines(run)
        if re.match(r"(\(?\d{4}-\d\d-\d\d\)?$|E-mail:|Home page|Home \(|\(?(https?|ftp)://\S+\)?\.?$|Usenet newsgroup|FTP\b)", text) or "@" in text:
            continue
        listing = len(run) > 2 and sum(len(line.strip()) > 40 for line in run[:-1]) < 0.6 * (len(run) - 1)
        text = "\n".join(line.removeprefix("   ").rstrip() for line in run) if listing and len(run) <= markup.LONGEST_LISTING else text
        text = re.sub(r"\{([^{}]*?)\s*\((?:https?:|ftp:)?[^(){}]*\)\}", r"\1", text)
        text = re.sub(r"\{([^{}]*\w[^{}]*)\}", r"\1", re.sub(r"^(\d+\. )?<[a-z][^<>.]*[>.] ?", r"\1", text))
        text = re.sub(r"\{(?=[A-Za-z\"])|(?<=[A-Za-z\")])\}", "", text)
        text = re.sub(r"\b__|__\b", "", text)
        text = re.sub(r"\s*\((?:https?|ftp)://[^()\s]*\)", "", text)
        text = re.sub(r"\s*\[[A-Z][^\[\]]{0,80}\?\]|\s*\(\d{4}-\d\d-\d\d\)$", "", text)
        if re.search(r"\w", text):
            paragraphs.append(text.strip())
    return paragraphs


def _jargon_parts(folder: Path) -> tuple[list[str], list[str]]:
    """The paragraphs of the first nine tenths and of the rest, cut where an entry begins."""
    text = formats.read_text(_doc(folder, "jargon-text") / "jargon.txt.gz")
    begin = text.find("Welcome to the Jargon File", text.find("Table of Contents") + 200)
    paragraphs = []
    for paragraph in markup.plain(text[max(begin, 0):]):
        paragraph = re.sub(r"^:([^:]+):", r"\1:", paragraph)
        paragraph = re.sub(r"[{}]", "", paragraph)
        if not re.search(r"\[?(\[crunchly|Prev\b.*Next\b)", paragraph):
            paragraphs.append(paragraph)
    total, at, cut = sum(map(len, paragraphs)), 0, len(paragraphs)
    for index, paragraph in enumerate(paragraphs):
        if at >= 0.9 * total and len(paragraph) < 80:
            cut = index
            break
        at += len(paragraph)
    return paragraphs[:cut], paragraphs[cut:]


def _jargon(folder: Path) -> Iterator[list[str]]:
    yield _jargon_parts(folder)[0]


def _devil(folder: Path) -> Iterator[list[str]]:
    base = folder / "usr/share/dictd"
    for word, entry in formats.read_dictd(base / "devil.dict.dz", base / "devil.index"):
        if not word.startswith("00"):
            entry = re.sub(r"(?<!\w)_+|_+(?!\w)", "", re.sub(r"^ {8,}", " " * 8, entry, flags=re.MULTILINE))
            yield [("\n".join(line.rstrip() for line in run) if all(line.startswith("  ") for line in run[1:]) and len(run) > 2
                    else markup.join_lines(run)) for run in markup.blocks(entry)]


def _perl(folder: Path) -> Iterator[list[str]]:
    unwanted = r"toc|uniprops|api|intern|[\d]*delta|cn|jp|ko|tw|gpl|artistic|hist|modlib|todo|repository|boo?t|toot|tooc|lexwarn"
    pages = [path for path in sorted(folder.glob("usr/share/perl/*/pod/perl*.pod")) if not re.fullmatch(f"perl({unwanted})", path.stem)]
    for path in pages:
        yield markup.pod(formats.read_text(path))


def _git(folder: Path) -> Iterator[list[str]]:
    base = _doc(folder, "git-doc")
    for path in sorted(base.rglob("*.txt")):
        text = formats.read_text(path)
        if "RelNotes" not in path.parts and not re.search(r"mergetools|cmds-", path.name) and len(text) > 500:
            yield markup.asciidoc(text)


def _debian(package: str, pattern: str):
    def documents(folder: Path) -> Iterator[list[str]]:
        wanted = re.compile(pattern)
        # Older versions of a text (constitution.1.4.txt.gz) are nearly the same.
        for path in sorted(path for path in folder.glob("usr/share/**/*.txt*") if wanted.fullmatch(path.name) and path.is_file() and
                           "policy.html" not in path.parts):
            yield markup.plain(formats.read_text(path))
    return documents


def _wordnet(folder: Path) -> Iterator[list[str]]:
    names = {"noun": "noun", "verb": "verb", "adj": "adjective", "adv": "adverb"}
    for part, name in names.items():
        for words, gloss in formats.read_wordnet(folder / "usr/share/wordnet" / f"data.{part}"):
            if '"' in gloss and not re.search(r"slur|offensive|disparag|derogat|obscene|vulgar", gloss):
                yield [f"{', '.join(words)} ({name}): {re.sub(r'  +', ' ', gloss).rstrip('; ')}."]


# What is in bad taste, in verse, in pictures, or the property of one publisher is left out.
_FORTUNES = ("art", "computers", "cookie", "definitions", "education", "food", "fortunes", "humorists", "kids", "law", "linux", "literature",
             "love", "medicine", "miscellaneous", "news", "people", "pets", "platitudes", "politics", "riddles", "science", "tao", "wisdom",
             "work")


def _fortunes(folder: Path) -> Iterator[list[str]]:
    for name in _FORTUNES:
        path = folder / "usr/share/games/fortunes" / name
        if path.is_file():
            for cookie in formats.read_fortunes(path):
                if not re.search(r"Bierce|Devil's Dictionary|\^\[|\bfuck|\bnigg|\bcunt", cookie, re.IGNORECASE) and re.search(r"[a-z]{3}", cookie):
                    yield ["\n".join(re.sub(r"^\s*-- ?", "-- ", line.expandtabs(4).rstrip()) for line in cookie.split("\n") if line.strip())]


_READERS = {
    "anarchism": _anarchism,
    "sword-comm-tdavid": _sword("tdavid", ".cz"),
    "sword-comm-mhcc": _sword("mhcc", ".bz"),
    "r-cran-janeaustenr": _training_novels,
    "dict-foldoc": _foldoc,
    "jargon-text": _jargon,
    "perl-doc": _perl,
    "git-doc": _git,
    "debian-policy": _debian("debian-policy", r"(policy|fhs-3\.0|autopkgtest|copyright-format-1\.0|debconf_specification|menu-policy|perl-policy)\.txt(\.gz)?"),
    "debian-reference-en": _debian("debian-reference-en", r"debian-reference\.en\.txt(\.gz)?"),
    "doc-debian": _debian("doc-debian", r"(constitution|social-contract|bug-[a-z-]+|mailing-lists|source-unpack)\.txt(\.gz)?"),
    "wordnet-base": _wordnet,
    "fortunes-min": _fortunes,
    "fortunes": _fortunes,
}
