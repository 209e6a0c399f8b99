"""Texts are read in parts: wherever a part ends, the records and fragments are the same, and only a part is in memory."""

import contextlib
import gzip
import io
import itertools
import json
import re
import sys
import tempfile
import tracemalloc
import unittest
from pathlib import Path
from unittest import mock

import support

sys.path.insert(0, str(support.HUGGINGFACE))
support.require("numpy", "tokenizers", "h5py", "xxhash")

import make_tokens
import packing
import reading
import sources
from common import UsageError


class Words:
    """A tokenizer of words: what packing.py asks of one."""

    class Encoding:
        def __init__(self, text):
            self.offsets = [word.span() for word in re.finditer(r"\S+", text)]
            self.ids = [len(text[begin:end]) for begin, end in self.offsets]

    def encode_batch(self, texts):
        return [self.Encoding(text) for text in texts]

    def begin_of(self, add_bos):
        return []


class Reading(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def write(self, name, text):
        path = self.root / name
        data = text.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    def records(self, path, read_bytes):
        with mock.patch.object(reading, "READ_BYTES", read_bytes):
            return [record for _, record in reading.read_records(path)]

    def test_records_are_the_same_wherever_a_part_ends(self):
        wanted = [{"a": "\u00e4\u20ac\U0001f600, ]{\"", "n": [1, {"b": None}]}, {"a": "x" * 50}, {}]
        for name, text in (("lines", "\ufeff\n\n" + "\r\n".join(json.dumps(w, ensure_ascii=False) for w in wanted) + "\n"),
                           ("array", " \n" + json.dumps(wanted, ensure_ascii=False, indent=1) + " \n"),
                           ("packed.gz", json.dumps(wanted, ensure_ascii=False)), ("compact", json.dumps(wanted))):
            path = self.write(name, text)
            for read_bytes in (1, 2, 3, 7, 1 << 20):
                with self.subTest(name, read_bytes=read_bytes):
                    self.assertEqual(self.records(path, read_bytes), wanted)
        self.assertEqual(self.records(self.write("none", " [ ] "), 2), [])
        self.assertEqual(self.records(self.write("empty", " \n "), 2), [])

    def test_what_is_wrong_is_named_wherever_a_part_ends(self):
        for name, text, word in (("cut", '[{"a": 1}, {"a": ', "record 1: not valid JSON"),
                                 ("commas", '[{"a": 1} {"a": 2}]', "record 1: not valid JSON"),
                                 ("after", '[{"a": 1}] x', "after the end"), ("number", "[{}, 12]", "record 1: expected a JSON"),
                                 ("line", '{"a": 1}\n{"a": \n', "line:2: not valid JSON")):
            path = self.write(name, text)
            for read_bytes in (1, 5, 1 << 20):
                with self.subTest(name, read_bytes=read_bytes):
                    with self.assertRaisesRegex(UsageError, word):
                        self.records(path, read_bytes)
        latin = self.root / "latin"
        latin.write_bytes("\u20ac".encode() * 5 + b"\xe9!")
        for read_bytes in (1, 4, 1 << 20):
            with mock.patch.object(reading, "READ_BYTES", read_bytes), self.assertRaisesRegex(UsageError, "byte 15 is not"):
                list(reading.read_parts(latin))

    def fragments(self, text, characters=40):
        path = self.write("text", text)
        source = sources.Source(path, "text", "", "all")
        with mock.patch.object(sources, "TEXT_PIECE_CHARACTERS", characters), mock.patch.object(reading, "READ_BYTES", 7):
            return list(sources.documents(source, None))

    def test_a_long_text_is_one_document_in_fragments_with_one_begin_and_one_end(self):
        text = "\n\n".join(f"paragraph {i} of these" for i in range(20))
        parts = self.fragments(text)
        self.assertGreater(len(parts), 3)
        self.assertEqual("".join(piece for part in parts for piece in part.pieces), text)
        self.assertEqual([part.begins for part in parts], [True] + [False] * (len(parts) - 1))
        self.assertEqual([part.ends for part in parts], [False] * (len(parts) - 1) + [True])
        for part in parts[:-1]:
            self.assertTrue(part.pieces[0].endswith("\n\n"), part)
        packer = packing.Packer(2)
        for tokens in packing.tokenize_documents(parts, Words(), packing.Ends([7001], eos=7002)):
            packer.add(tokens)
        ids, _, starts = packer.arrays()
        self.assertEqual([(ids == i).sum() for i in (7001, 7002)], [1, 1])
        self.assertEqual(starts.sum(), 1)

    def test_a_text_without_paragraphs_is_still_read_in_fragments(self):
        for mark in ("\n", " ", "x"):
            text = mark.join(["longer"] * 200)
            parts = self.fragments(text)
            self.assertEqual("".join(part.pieces[0] for part in parts), text)
            self.assertLess(max(len(part.pieces[0]) for part in parts), 2 * 40 + 7)
            for part in parts[:-1] if mark != "x" else []:
                self.assertEqual(part.pieces[0].strip().split(mark)[-1], "longer", "cut inside a word")

    def test_the_held_out_end_is_the_same_for_stages_that_treat_documents_differently(self):
        documents = [sources.Document((" ".join(f"d{i}w{j}" for j in range(5)),)) for i in range(50)]
        far = packing.split_documents(lambda: iter(documents), 23, Words())
        self.assertEqual((far.num_train, len(far.validation)), (45, 5))
        with mock.patch.object(packing, "CHARACTERS_PER_TOKEN", 1):  # too short a look back is widened
            near = packing.split_documents(lambda: iter(documents), 23, Words())
        self.assertEqual(near, far)
        self.assertEqual(list(far.training(iter(documents))), documents[:45])

    def test_a_text_in_fragments_is_cut_in_the_one_where_the_held_out_end_begins(self):
        text = "\n\n".join(f"a{i} b{i} c{i} d{i} e{i}" for i in range(40))
        parts = self.fragments(text)
        between = sum(len(part.pieces[0].split()) for part in parts[-2:])  # exactly where two fragments meet
        for needed in (42, between):
            split = packing.split_documents(lambda: iter(parts), needed, Words())
            training = list(split.training(iter(parts)))
            held = " ".join(d.pieces[0] for d in split.validation).split()
            self.assertGreaterEqual(len(held), needed)
            self.assertLess(len(held), needed + 10)
            self.assertEqual(" ".join(d.pieces[0] for d in training).split() + held, text.split())
            for documents in (training, split.validation):
                self.assertEqual((documents[0].begins, documents[-1].ends), (True, True))
                self.assertEqual(sum(d.begins for d in documents), 1)
                self.assertEqual(sum(d.ends for d in documents), 1)

    def test_each_time_the_text_is_read_is_a_phase_that_begins_anew(self):
        path = self.write("text", "\n\n".join(f"a{i} b{i} c{i}" for i in range(40)))
        section = make_tokens.DataSection("transfer", "", (sources.Source(path, "text", "", "all"),), seq_len=4,
                                          validation_sequences=2, max_sequences=0, split="documents", add_bos="auto",
                                          eos_token_id=-2, keep="both", held_out=8)
        tokenizer, out = Words(), io.StringIO()
        tokenizer.render_chat = None
        with mock.patch.object(reading, "READ_BYTES", 16), mock.patch.object(sources, "TEXT_PIECE_CHARACTERS", 40), \
                contextlib.redirect_stdout(out), mock.patch.object(make_tokens.time, "monotonic", itertools.count().__next__):
            make_tokens.tokenize(section, tokenizer)
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        phases = [(name, [line["progress"] for line in group])
                  for name, group in itertools.groupby(lines, key=lambda line: line["phase"])]
        self.assertEqual([name for name, _ in phases], ["tokenize transfer, held-out end", "tokenize transfer"])
        for name, shares in phases:
            self.assertEqual(shares, sorted(shares), name)
            self.assertLess(shares[0], 0.2, name)

    def test_the_whole_text_is_never_in_memory(self):
        size = 2 << 20
        line = json.dumps({"instruction": "word " * 80, "output": "answer " * 15}) + "\n"
        path = self.write("large.jsonl", line * (size // len(line)))
        source = sources.Source(path, "records", "", "all")
        text = self.write("large.txt", ("word " * 20 + "\n\n") * (size // 102))
        plain = sources.Source(text, "text", "", "all")
        for each in (source, plain):
            with mock.patch.object(reading, "READ_BYTES", 1 << 12), \
                    mock.patch.object(sources, "TEXT_PIECE_CHARACTERS", 1 << 12), \
                    mock.patch.object(packing, "BATCH_CHARACTERS", 1 << 12), self.subTest(each.format):
                read = lambda: sources.documents(each, None)
                tracemalloc.start()
                split = packing.split_documents(read, 300, Words())
                for _ in itertools.islice(packing.tokenize_documents(split.training(read()), Words(), packing.Ends()), 200):
                    pass
                peak = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
                self.assertLess(peak, size // 4)


if __name__ == "__main__":
    unittest.main()
