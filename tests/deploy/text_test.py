"""deploy/text: readers of packages' files, markup, the mixture, and the whole program with tiny packages made here.

Catches: a format that is read wrongly, markup in the text, held-out text in a training file, a mixture whose beginning is of one kind,
a second call that writes again, an error that does not name the package. No network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path
from unittest import mock

FOLDER = Path(__file__).resolve().parents[2] / "deploy/text"
sys.path.insert(0, str(FOLDER))
import formats  # noqa: E402
import kinds  # noqa: E402
import make_mixture  # noqa: E402
import markup  # noqa: E402
import mixing  # noqa: E402

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
WORDS = ("old grey quiet distant first seventh keeper builder reader daughter harbour mill garden library orchard market river council went came "
         "before after under beside walked spoke wrote carried opened letter window bridge winter morning candle lantern").split()


def prose(seed: int, count: int = 12) -> list[str]:
    """Paragraphs of words by chance, each with a number of its own, so that no two share a run of words."""
    chance = random.Random(seed)
    return [f"In the year {seed}{number}0 they say: " + " ".join(chance.choices(WORDS, k=35)) + "." for number in range(count)]


def number(value: int) -> str:
    digits = ""
    while True:
        digits = DIGITS[value % 64] + digits
        value //= 64
        if not value:
            return digits


def write_zcom(base: Path, extension: str, blocks: list[str]) -> None:
    base.parent.mkdir(parents=True, exist_ok=True)
    index, data = b"", b""
    for block in blocks:
        packed = zlib.compress(block.encode())
        index += struct.pack("<III", len(data), len(packed), len(block.encode()))
        data += packed
    Path(f"{base}{extension}s").write_bytes(index)
    Path(f"{base}{extension}z").write_bytes(data)


def write_dictd(folder: Path, name: str, entries: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text, lines = b"", []
    for word, entry in entries.items():
        lines.append(f"{word}\t{number(len(text))}\t{number(len(entry.encode()))}\n")
        text += entry.encode()
    (folder / f"{name}.dict.dz").write_bytes(gzip.compress(text))
    (folder / f"{name}.index").write_text("".join(sorted(lines)))


def write_rdb(path: Path, vectors: list[list[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = b""
    for lines in vectors:
        vector = b"X\n" + struct.pack(">iiii", 3, 0x40201, 0x30500, 5) + b"UTF-8" + struct.pack(">ii", 16, len(lines))
        vector += b"".join(struct.pack(">ii", 0x40009, len(line.encode())) + line.encode() for line in lines)
        content += struct.pack(">I", len(vector)) + zlib.compress(vector)
    path.write_bytes(content)


class Folder(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="hedgerow-text-")
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)


class Formats(Folder):
    def test_blocks_of_a_sword_module_come_in_order(self):
        write_zcom(self.folder / "ot", ".cz", ["first block", "second block: caf\u00e9"])
        self.assertEqual(formats.read_zcom(self.folder / "ot", ".cz"), ["first block", "second block: caf\u00e9"])

    def test_a_sword_module_that_was_cut_is_refused_with_its_place(self):
        write_zcom(self.folder / "ot", ".cz", ["first block", "second block"])
        data = (self.folder / "ot.czz").read_bytes()
        (self.folder / "ot.czz").write_bytes(data[:-3])
        with self.assertRaisesRegex(ValueError, r"ot\.czz at byte \d+"):
            formats.read_zcom(self.folder / "ot", ".cz")

    def test_entries_of_a_dictd_dictionary_are_cut_by_its_index(self):
        entries = {"zebra": "zebra\n\n   An animal.\n", "ape": "ape\n\n   " + "Another one. " * 40 + "\n"}
        write_dictd(self.folder, "tiny", entries)
        self.assertEqual(dict(formats.read_dictd(self.folder / "tiny.dict.dz", self.folder / "tiny.index")), entries)

    def test_character_vectors_of_an_r_database_are_read(self):
        vectors = [["EMMA", "", "a line"], ["Persuasion", "caf\u00e9"]]
        write_rdb(self.folder / "Rdata.rdb", vectors)
        self.assertEqual(formats.read_rdb(self.folder / "Rdata.rdb"), vectors)

    def test_an_r_database_that_was_cut_is_refused(self):
        write_rdb(self.folder / "Rdata.rdb", [["EMMA", "", "a line"]])
        (self.folder / "Rdata.rdb").write_bytes((self.folder / "Rdata.rdb").read_bytes()[:-5])
        with self.assertRaises(ValueError):
            formats.read_rdb(self.folder / "Rdata.rdb")

    def test_synsets_of_wordnet_give_words_and_gloss(self):
        (self.folder / "data.noun").write_text("  1 a licence\n00001740 03 n 02 old_mill 0 mill(a) 1 001 @ 00001930 n 0000 | a place; \"it grinds\"  \n")
        self.assertEqual(list(formats.read_wordnet(self.folder / "data.noun")), [(["old mill", "mill"], 'a place; "it grinds"')])


class Markup(unittest.TestCase):
    def test_osis_leaves_paragraphs_and_titles(self):
        text = ('<chapter n="1" sID="Ps.1"/><title>TITLE.</title><div sID="g1" type="x-p"/> <hi type="bold">Verse 1.</hi> Blessed\n is &amp; was.'
                '<note>a note</note> <div eID="g1" type="x-p"/><div sID="g2" type="x-p"/>Two.')
        self.assertEqual(markup.osis(text), ["TITLE.", "Verse 1. Blessed is & was.", "Two."])

    def test_osis_closing_quotation_marks_stand_before_the_space(self):
        self.assertEqual(markup.osis('He said, "save me, ""help, "and left, "In a Book, "1633. He said, "Go."'),
                         ['He said, "save me," "help," and left, "In a Book," 1633. He said, "Go."'])

    def test_markdown_leaves_no_emphasis_no_links_no_navigation(self):
        text = ("# B.3 Why?\n\nThe _\"maxim\"_ of **Proudhon** , see [section B.3.2](secB3.md#b) on decision-\nmaking 1\\. again.\n\n> quoted **here**\n> "
                "and on\n\n  * one\n  * two\n\n[\u2039 A.3](secA3.md \"Go to previous page\")\n[up](s.md \"Go to parent page\")\n")
        self.assertEqual(markup.markdown(text), ["B.3 Why?", 'The "maxim" of Proudhon, see section B.3.2 on decision-making 1. again.',
                                                 "quoted here and on", "- one", "- two"])

    def test_pod_leaves_text_and_short_listings(self):
        text = ("=encoding utf8\n\n=head1 NAME\n\nUse B<-0xI<HHH>> or C<< $a->{b} > 1 >>, L<the manual|perlop/x>, E<lt>tagE<gt>.X<index>\n\n    my $x;\n\n    exit;\n\n"
                "=over 4\n\n=item * first\n\n=item name\n\nIts text.\n\n=back\n\n=begin html\n\n<b>no</b>\n\n=end html\n\n" +
                "\n".join(f"    line {at}" for at in range(30)) + "\n\n=cut\n")
        self.assertEqual(markup.pod(text), ["NAME", "Use -0xHHH or $a->{b} > 1, the manual, <tag>.", "    my $x;\n    exit;", "- first", "name", "Its text."])

    def test_asciidoc_leaves_no_fences_links_or_underlines(self):
        text = ("git-x(1)\n========\n\nSee linkgit:git-y[1] and `code` of\n'git x'.\n\n--onto <new>::\n\tStarting point of\n\tthe work.\n\nSYNOPSIS\n--------\n[verse]\n'git x' [-a]\n\n"
                "----\nA---B\n----\n\ninclude::z.txt[]\n* one\n* two\n")
        self.assertEqual(markup.asciidoc(text), ["git-x(1)", "See git-y(1) and code of git x.", "--onto <new>: Starting point of the work.", "    A---B",
                                                 "- one", "- two"])

    def test_plain_text_loses_contents_tables_and_underlines(self):
        text = ("Manual\n******\n\n1. About\n\n1.1. Scope\n\n1.2. Versions\n\n2. More\n\nThis paragraph of the manual was broken into two or three\nlines that are long enough to "
                "be taken for prose here,\nand ends.\n\n| a | b |\n+---+---+\n\n    # command\n")
        self.assertEqual(markup.plain(text), ["Manual", "This paragraph of the manual was broken into two or three lines that are long enough to be taken for "
                                              "prose here, and ends.",
                                              "    # command"])


class Mixing(unittest.TestCase):
    def test_every_beginning_has_the_shares(self):
        made = {name: [f"{name} " + "x" * 97 for _ in range(count)] for name, count in (("a", 600), ("b", 300), ("c", 400))}
        mixed = mixing.interleave(made, {"a": 0.5, "b": 0.3, "c": 0.2}, 60_000)
        for end in (60, 150, 400, len(mixed)):
            counted = [sum(name == kind for kind, _ in mixed[:end]) / end for name in "abc"]
            for found, wished in zip(counted, (0.5, 0.3, 0.2)):
                self.assertAlmostEqual(found, wished, delta=0.03, msg=f"first {end}: {counted}")

    def test_a_kind_that_is_short_is_spread_over_the_whole(self):
        given = mixing.amounts({"a": 1000, "b": 100, "c": 1000}, {"a": 0.4, "b": 0.4, "c": 0.2}, 1000)
        self.assertEqual({name: round(value) for name, value in given.items()}, {"a": 600, "b": 100, "c": 300})

    def test_pieces_are_whole_paragraphs_and_lose_none(self):
        documents = ["\n\n".join(prose(seed)) for seed in range(5)] + ["short"] * 9
        made = mixing.pieces(documents, 1000)
        self.assertEqual("\n\n".join(made), "\n\n".join(documents))
        self.assertLess(max(map(mixing.size, made)), 2000)

    def test_a_paragraph_with_held_out_words_is_left_out(self):
        held = prose(1)[0]
        sieve = mixing.Filter(mixing.windows([held]))
        kept = sieve.clean("\n\n".join(["Before.", "He read aloud: " + held[30:150] + " and closed the book.", "After.", "Permission is hereby granted to copy."]))
        self.assertEqual(kept, "Before.\n\nAfter.")
        self.assertGreater(sieve.dropped["held_out"], 0)
        self.assertGreater(sieve.dropped["notice"], 0)

    def test_held_out_words_are_found_across_short_paragraphs(self):
        sieve = mixing.Filter(mixing.windows(["What are you doing? asked the master.\n\nI am training a net, said the novice."]))
        self.assertEqual(sieve.clean("A story.\n\nWhat are you doing? asked the master.\n\nI am training a net, said the novice.\n\nThe end."),
                         "A story.\n\nThe end.")

    def test_a_long_paragraph_comes_once(self):
        sieve = mixing.Filter(set())
        paragraph = prose(2)[0]
        self.assertEqual((sieve.clean(paragraph), sieve.clean(paragraph)), (paragraph, ""))

    def test_evenly_takes_from_all_over_within_the_limit(self):
        chosen = mixing.evenly([f"{at:04}" for at in range(1000)], 600)
        self.assertEqual(chosen, sorted(chosen))
        self.assertLessEqual(6 * len(chosen), 600)
        self.assertGreater(sum(int(document) >= 500 for document in chosen), 40)


NOVELS = ("EMMA", "MANSFIELD PARK", "NORTHANGER ABBEY", "Persuasion", "PRIDE AND PREJUDICE", "SENSE AND SENSIBILITY")


def tiny_trees(top: Path) -> None:
    """What each package unpacks to, a few kilobytes of it."""
    def doc(package: str, name: str, text: str) -> None:
        path = top / package / "usr/share/doc" / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode())

    for package in kinds.PACKAGES:
        doc(package, "copyright", f"{package}: public domain\n")
    for at, name in enumerate(("secA1.md.gz", "secA2.md", "append31.md.gz", "links.md")):
        doc("anarchism", f"markdown/{name}", "# Title\n\n" + "\n\n".join(prose(10 + at)))
    for at, (package, module, extension) in enumerate((("sword-comm-tdavid", "tdavid", ".cz"), ("sword-comm-mhcc", "mhcc", ".bz"))):
        base = top / package / "usr/share/sword/modules/comments/zcom" / module
        for testament in ("ot", "nt"):
            write_zcom(base / testament, extension, ['<chapter sID="x"/>' + "".join(f'<div sID="g" type="x-p"/>{text}' for text in prose(20 + at + 2 * (testament == "nt")))])
    lines = {title: [line for text in prose(30 + at) for line in (text, "")] for at, title in enumerate(NOVELS)}
    write_rdb(top / "r-cran-janeaustenr/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb", [[title, "", *body] for title, body in lines.items()])
    entries = {f"word{at}": f"word{at}\n\n   <language> {{link}} {text}\n\n   (1998-04-28)\n\n" for at, text in enumerate(prose(40))}
    write_dictd(top / "dict-foldoc/usr/share/dictd", "foldoc", {"00-database-info": "head\n\n   of it\n\n", **entries,
                                                               "hack": "hack\n\n   " + prose(41)[0] + "\n\n   [{Jargon File}]\n\n"})
    write_dictd(top / "dict-devil/usr/share/dictd", "devil", {f"D{at}": f"D{at}, n.  {text}\n\n" for at, text in enumerate(prose(50))})
    doc("jargon-text", "jargon.txt.gz", "Table of Contents\n\n" + "x" * 200 + "\n\n Welcome to the Jargon File\n\n" +
        "\n\n".join(f"   :word{at}: n.\n\n   {text}" for at, text in enumerate(prose(60, 30))))
    pods = top / "perl-doc/usr/share/perl/5.36.0/pod"
    pods.mkdir(parents=True)
    for at, name in enumerate(("perlfoo", "perl5360delta")):
        (pods / f"{name}.pod").write_text("=head1 NAME\n\n" + "\n\n".join(prose(70 + at)) + "\n\n=cut\n")
    doc("git-doc", "git-x.txt", "git-x(1)\n========\n\n" + "\n\n".join(prose(80)))
    doc("debian-policy", "policy.txt.gz", "Policy\n******\n\n" + "\n\n".join(prose(81)))
    doc("doc-debian", "constitution.txt.gz", "\n\n".join(prose(82)))
    reference = top / "debian-reference-en/usr/share/debian-reference"
    reference.mkdir(parents=True)
    (reference / "debian-reference.en.txt.gz").write_bytes(gzip.compress("\n\n".join(prose(83)).encode(), mtime=0))
    wordnet = top / "wordnet-base/usr/share/wordnet"
    wordnet.mkdir(parents=True)
    for at, part in enumerate(("noun", "verb", "adj", "adv")):
        (wordnet / f"data.{part}").write_text("".join(f'00000000 03 n 01 word{line} 0 000 | {text}; "it is"  \n' for line, text in enumerate(prose(90 + at, 30))))
    for at, (package, name) in enumerate((("fortunes", "wisdom"), ("fortunes-min", "literature"))):
        path = top / package / "usr/share/games/fortunes" / name
        path.parent.mkdir(parents=True)
        path.write_text("\n%\n".join(prose(95 + at)) + "\n%\n")


@unittest.skipUnless(shutil.which("dpkg-deb"), "no dpkg-deb here: it makes and unpacks the packages")
class Program(Folder):
    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory(prefix="hedgerow-debs-")
        cls.addClassCleanup(holder.cleanup)
        cls.debs = Path(holder.name) / "debs"
        cls.debs.mkdir()
        trees = Path(holder.name) / "trees"
        tiny_trees(trees)
        for package in kinds.PACKAGES:
            (trees / package / "DEBIAN").mkdir()
            (trees / package / "DEBIAN/control").write_text(f"Package: {package}\nVersion: 1.0\nArchitecture: all\nMaintainer: nobody\nDescription: tiny\n")
            subprocess.run(["dpkg-deb", "-b", "-Znone", "--root-owner-group", str(trees / package), str(cls.debs / f"{package}_1.0_all.deb")], check=True,
                           capture_output=True)

    def make(self, *words: str, cache: str = "cache", small: bool = True) -> tuple[int, str]:
        """The exit code, and what was said; `small` packages are enough."""
        table = {name: dataclasses.replace(package, at_least=100) if small else package for name, package in kinds.PACKAGES.items()}
        said = io.StringIO()
        with mock.patch.dict(os.environ, HEDGEROW_CACHE=str(self.folder / cache)), mock.patch.object(sys, "argv", ["make_mixture.py", *words]), \
                mock.patch.object(kinds, "PACKAGES", table), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                code = make_mixture.main()
            except SystemExit as ended:
                code = int(ended.code or 0)
        return code, said.getvalue()

    def files(self, cache: str = "cache") -> dict[str, bytes]:
        target = self.folder / cache / "data/mixture"
        return {str(path.relative_to(target)): path.read_bytes() for path in sorted(target.rglob("*")) if path.is_file()}

    def test_all_files_are_there_and_the_card_is_right(self):
        code, said = self.make("--packages", str(self.debs), "--piece-tokens", "100")
        self.assertEqual(code, 0, said)
        files = self.files()
        card = json.loads(files["card.json"])
        self.assertEqual(set(card["files"]) | {"card.json", "CARD.md"}, set(files))
        for kind in kinds.KINDS:
            self.assertEqual(card["kinds"][kind.name]["bytes"], len(files[f"{kind.name}.txt"]))
        for package in kinds.PACKAGES:
            self.assertIn(f"| {package} | 1.0 |", files["CARD.md"].decode())
        self.assertLess(len(files["dictionary.txt"]), 0.06 * sum(len(files[f"{kind.name}.txt"]) for kind in kinds.KINDS))
        self.assertEqual([path.name for path in (self.folder / "cache/data").iterdir() if "partial" in path.name], [])

    def test_no_held_out_text_and_no_unwanted_document_is_in_a_training_file(self):
        self.make("--packages", str(self.debs))
        files = self.files()
        training = b"\n".join(content for name, content in files.items() if name.endswith(".txt") and "held_out" not in name).decode()
        held_out = "\n\n".join(files[f"held_out/{name}.txt"].decode() for name in kinds.HELD_OUT)
        self.assertIn("year 3300 ", files["held_out/persuasion.txt"].decode())
        self.assertIn("year 5000 ", files["held_out/devils-dictionary.txt"].decode())
        self.assertIn("year 60290 ", files["held_out/jargon-end.txt"].decode())
        for year in re.findall(r"year (\d+) ", held_out):
            self.assertNotIn(f"year {year} ", training)
        for left_out in ("year 1300 ", "year 4100 ", "year 7100 ", "Jargon File]", "1998-04-28", "<language>"):
            self.assertNotIn(left_out, training)

    def test_the_same_packages_give_the_same_bytes(self):
        self.make("--packages", str(self.debs), "--tokens", "3000", "--piece-tokens", "100")
        self.make("--packages", str(self.debs), "--tokens", "3000", "--piece-tokens", "100", cache="other")
        self.assertEqual(self.files(), self.files("other"))

    def test_a_second_call_writes_nothing_and_a_damaged_file_is_made_again(self):
        words = ("--packages", str(self.debs), "--tokens", "3000")
        self.make(*words)
        before, target = self.files(), self.folder / "cache/data/mixture"
        times = {path: path.stat().st_mtime_ns for path in target.rglob("*")}
        code, said = self.make(*words)
        self.assertEqual((code, times), (0, {path: path.stat().st_mtime_ns for path in target.rglob("*")}))
        self.assertIn("complete", said)
        (target / "novels.txt").write_bytes(before["novels.txt"][:-1] + b"x")
        self.make(*words)
        self.assertEqual(self.files(), before)

    def test_tokens_cut_the_mixture_and_keep_the_shares(self):
        code, said = self.make("--packages", str(self.debs), "--tokens", "4000", "--piece-tokens", "100")
        card = json.loads(self.files()["card.json"])
        self.assertLessEqual(card["files"]["mixture.txt"]["tokens"], 4000, said)
        self.assertGreater(card["files"]["mixture.txt"]["tokens"], 3700, said)
        for kind in kinds.KINDS:
            self.assertAlmostEqual(card["kinds"][kind.name]["share"], kind.share, delta=0.05, msg=kind.name)

    def test_a_missing_package_is_named_with_what_to_do(self):
        some = self.folder / "some"
        shutil.copytree(self.debs, some)
        (some / "git-doc_1.0_all.deb").unlink()
        code, said = self.make("--packages", str(some))
        self.assertEqual((code, self.files()), (5, {}))
        self.assertRegex(said.splitlines()[-1], r"^error: .*package git-doc: .*apt-get download")
        self.assertEqual(said.count("error"), 1)

    def test_a_package_with_too_little_text_is_named(self):
        code, said = self.make("--packages", str(self.debs), small=False)
        self.assertEqual(code, 5)
        self.assertRegex(said.splitlines()[-1], r"^error: .*package [a-z-]+ 1\.0: \d+ bytes of text in it, at least \d+ expected")

    def test_a_package_with_other_files_or_damage_is_named(self):
        some = self.folder / "some"
        shutil.copytree(self.debs, some)
        shutil.copy(some / "git-doc_1.0_all.deb", some / "dict-foldoc_1.0_all.deb")
        code, said = self.make("--packages", str(some))
        self.assertEqual(code, 5)
        self.assertRegex(said.splitlines()[-1], r"^error: .*package dict-foldoc 1\.0: .*foldoc\.(dict\.dz|index)")
        (some / "dict-foldoc_1.0_all.deb").write_bytes(b"no archive")
        code, said = self.make("--packages", str(some))
        self.assertEqual(code, 5)
        self.assertRegex(said.splitlines()[-1], r"^error: .*package dict-foldoc: .*cannot be read.*remove that file")
        self.assertEqual(self.files(), {})

    def test_wrong_options_are_a_usage_error(self):
        for words in (("--tokens", "5"), ("--packages", str(self.folder / "none")), ("--what",)):
            self.assertEqual(self.make(*words)[0], 2, words)


if __name__ == "__main__":
    unittest.main()
