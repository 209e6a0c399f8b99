"""make_tokens.py and text.py on a small tokenizer trained here: formats, masks, packing, splits, wrong input.

Catches: text in both training and validation, a mask shifted by a token, a template written differently, a file that
depends on the run, and an error that is a traceback or does not name its key.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from unittest import mock

import support

support.require("tokenizers", "h5py", "xxhash", "jinja2")
sys.path.append(str(support.HUGGINGFACE))

import h5py
import numpy as np
import make_tokens
import split_sources
import xxhash
from model_tokenizer import ModelTokenizer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokens_section import write_section

EOS, BOS = 0, 1
WORDS = "alpha beta gamma delta hedge row field stone water light under over seven eight quiet river".split()


def sentence(seed: int, words: int) -> str:
    return " ".join(WORDS[(seed * 7 + i * (seed % 5 + 3)) % len(WORDS)] for i in range(words))


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.root = Path(cls.folder.name)
        cls.model = cls.root / "model"
        cls.model.mkdir()
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["<end>", "<begin>"], show_progress=False,
                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        tokenizer.train_from_iterator([sentence(i, 20) for i in range(50)], trainer)
        tokenizer.save(str(cls.model / "tokenizer.json"))
        cls.tokenizer = tokenizer
        cls.configure(tokenizer.get_vocab_size())
        (cls.model / "tokenizer_config.json").write_text(json.dumps({
            "bos_token": "<begin>", "eos_token": "<end>",
            "chat_template": "{% for m in messages %}<begin>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
                             "{% if add_generation_prompt %}<begin>assistant\n{% endif %}"}))

    @classmethod
    def configure(cls, vocab_size: int) -> None:
        (cls.model / "config.json").write_text(json.dumps({"vocab_size": vocab_size, "eos_token_id": EOS,
                                                           "bos_token_id": BOS}))

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.write_text(text, encoding="utf-8")
        return path

    def records(self, name: str, count: int) -> Path:
        return self.write(name, json.dumps([{"instruction": sentence(i, 3), "input": sentence(i + 1, 2) if i % 2 else "",
                                             "output": f"{i} " + sentence(i + 2, 5)} for i in range(count)]))

    def run_program(self, section: str | Path, stage: str = "transfer", out: str = "out.h5") -> subprocess.CompletedProcess:
        """`section`: its keys as a recipe has them, or a file that is there already."""
        if isinstance(section, str):
            section = write_section(self.root / "section.json", stage=stage, **tomllib.loads(section))
        return subprocess.run([sys.executable, support.HUGGINGFACE / "make_tokens.py", "--section", section, "--model",
                               self.model, "--out", self.root / out], capture_output=True, text=True, timeout=60)

    def make(self, section: str, stage: str = "transfer"):
        """(ids, mask, starts, num_train) of a run that must succeed."""
        done = self.run_program(section, stage)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout.splitlines()[-1])["event"], "done")
        with h5py.File(self.root / "out.h5") as file:
            return (*(file[n][:] for n in ("input_ids", "loss_mask", "document_starts")), int(file.attrs["num_train"]))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids) -> str:
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

    def assert_refused(self, section: str | Path, *words: str, stage: str = "transfer") -> None:
        done = self.run_program(section, stage)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_records_split_by_sequences_are_the_concatenation_cut(self):
        path = self.records("r.json", 40)
        ids, mask, starts, num_train = self.make(
            f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\nvalidation_sequences = 3\n'
            'split = "sequences"')
        expected = []
        begins = []
        for r in json.loads(path.read_text()):
            begins.append(len(expected))
            expected += self.encode(r["instruction"] + "\n" + r["input"] + "\n" + r["output"]) + [EOS]
        rows = len(expected) // 16
        self.assertEqual(ids.ravel().tolist(), expected[:rows * 16])
        self.assertEqual((len(ids), num_train), (rows, rows - 3))
        self.assertEqual(np.flatnonzero(starts).tolist(), [b for b in begins if b < rows * 16])
        self.assertTrue(mask.all())

    def test_validation_documents_are_the_last_and_in_no_training_sequence(self):
        path = self.records("r.json", 60)
        ids, _, _, num_train = self.make(
            f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\nvalidation_sequences = 4')
        self.assertEqual(len(ids) - num_train, 4)
        text = [r["instruction"] + "\n" + r["input"] + "\n" + r["output"] for r in json.loads(path.read_text())]
        train, held = self.decode(ids[:num_train].ravel()), self.decode(ids[num_train:].ravel())
        # Documents before the border lie in training, the border itself begins validation.
        first_held = next(i for i, t in enumerate(text) if held.startswith(t))
        self.assertNotIn(f"\n{first_held} ", train)
        self.assertIn(text[first_held - 2], train)
        tokens_held = sum(len(self.encode(t)) + 1 for t in text[first_held + 1:])
        self.assertLess(tokens_held, 4 * 16, "more documents were held back than needed")

    def test_a_long_text_is_cut_at_a_paragraph(self):
        paragraphs = [f"Paragraph {i}. " + sentence(i, 12) for i in range(40)]
        path = self.write("book.txt", "\n\n".join(paragraphs))
        ids, _, starts, num_train = self.make(
            f'sources = [{{path = "{path}"}}]\nseq_len = 32\nvalidation_sequences = 3')
        held = self.decode(ids[num_train:].ravel())
        self.assertTrue(held.startswith("Paragraph "), held[:40])
        number = held.split(".")[0]
        self.assertNotIn(number + ".", self.decode(ids[:num_train].ravel()))
        self.assertEqual(int(starts.sum()), 2)

    def test_a_text_without_blank_lines_is_cut_at_a_line_or_between_two_words(self):
        lines = [f"Line {i}. " + sentence(i, 12) for i in range(40)]
        for name, separator, start in (("wikitext", " \n \n ", "Line"), ("lines", "\n", "Line"), ("one line", " ", "")):
            with self.subTest(name):
                path = self.write("book.txt", separator.join(lines))
                ids, _, _, num_train = self.make(
                    f'sources = [{{path = "{path}"}}]\nseq_len = 32\nvalidation_sequences = 3')
                self.assertGreater(num_train, 10)
                held = self.decode(ids[num_train:].ravel())
                self.assertTrue(held.strip().startswith(start), held[:40])
                self.assertNotIn(held[:60], self.decode(ids[:num_train].ravel()))

    def test_the_end_of_a_file_alone_gives_what_the_whole_file_gives(self):
        book = self.write("book.txt", "\n\n".join(f"Paragraph {i}. " + sentence(i, 12) for i in range(400)))
        lines = self.write("r.jsonl", "".join(json.dumps({"q": sentence(i, 9)}) + "\n" for i in range(900)))
        tokenizer = ModelTokenizer(self.model)
        records = f'path = "{lines}", format = "jsonl", template = "{{q}}"'
        for name, of in (("text", f'path = "{book}"'), ("records", records), ("both", f'path = "{book}" }}, {{{records}')):
            for limit in (0, 5):
                made = []
                for least in (0, 1 << 30):
                    section = write_section(self.root / "section.json", **tomllib.loads(
                        f"sources = [{{{of}}}]\nseq_len = 32\nvalidation_sequences = 3\nmax_sequences = {limit}"))
                    with (self.subTest(name, limit=limit), contextlib.redirect_stdout(io.StringIO()),
                          mock.patch.object(split_sources, "LEAST_SOUGHT_BYTES", least),
                          mock.patch.object(split_sources, "LEAST_TAIL_BYTES", 1)):
                        made.append(make_tokens.tokenize(make_tokens.read_section(section), tokenizer))
                sought, whole = made
                self.assertEqual(sought.num_train, whole.num_train)
                np.testing.assert_array_equal(sought.input_ids, whole.input_ids)
                np.testing.assert_array_equal(sought.document_starts, whole.document_starts)

    def test_alpaca_uses_both_templates_and_masks_the_prompt(self):
        path = self.write("a.json", json.dumps([{"instruction": "say alpha", "input": "", "output": "alpha"},
                                                {"instruction": "repeat", "input": "beta", "output": "beta row"}] * 4))
        ids, mask, starts, _ = self.make(
            f'sources = [{{path = "{path}", format = "alpaca", label_mask = "answer"}}]\nseq_len = 64\n'
            'validation_sequences = 0\nadd_bos = true', stage="finetune")
        flat, keep, begin = ids.ravel(), mask.ravel().astype(bool), np.flatnonzero(starts.ravel())
        first, second = flat[begin[0]:begin[1]], flat[begin[1]:begin[2]]
        self.assertEqual(self.decode(first), "<begin>Below is an instruction that describes a task. Write a response that "
                         "appropriately completes the request.\n\n### Instruction:\nsay alpha\n\n### Response:\nalpha<end>")
        self.assertIn("### Input:\nbeta\n\n### Response:\nbeta row<end>", self.decode(second))
        self.assertIn("paired with an input that provides further context", self.decode(second))
        self.assertEqual(self.decode(first[keep[begin[0]:begin[1]]]), "alpha<end>")
        self.assertEqual(self.decode(second[keep[begin[1]:begin[2]]]), "beta row<end>")

    def test_jsonl_template_counts_its_last_field(self):
        path = self.write("q.jsonl", "".join(json.dumps({"q": sentence(i, 3), "a": f"stone {i}"}) + "\n"
                                             for i in range(20)))
        ids, mask, starts, _ = self.make(
            f'sources = [{{path = "{path}", format = "jsonl", template = "Q: {{q}}\\nA: {{a}}", label_mask = "answer"}}]\n'
            'seq_len = 32\nvalidation_sequences = 0')
        flat, begin = ids.ravel(), np.flatnonzero(starts.ravel())
        document, keep = flat[begin[2]:begin[3]], mask.ravel()[begin[2]:begin[3]].astype(bool)
        self.assertEqual(self.decode(document), f"Q: {sentence(2, 3)}\nA: stone 2<end>")
        self.assertEqual(self.decode(document[keep]).strip(), "stone 2<end>")

    def test_jsonl_with_one_field_takes_that_of_each_record(self):
        path = self.write("t.jsonl", "".join(json.dumps({"text": f"stone {i} alpha", "id": i}) + "\n" for i in range(20)))
        ids, *_ = self.make(f'sources = [{{path = "{path}", format = "jsonl", template = "{{text}}"}}]\nvalidation_sequences = 0')
        self.assertTrue(self.decode(ids.ravel()).startswith("stone 0 alpha<end>stone 1 alpha<end>"))

    def test_conversations_of_sharegpt_are_a_chat(self):
        turns = [("system", "s", "system"), ("human", "alpha", "user"), ("gpt", "beta", "assistant")]
        theirs = self.write("theirs.jsonl", (json.dumps({"id": 1, "conversations": [
            {"from": who, "value": text} for who, text, _ in turns]}) + "\n") * 9)
        ours = self.write("ours.jsonl", (json.dumps({"messages": [
            {"role": role, "content": text} for _, text, role in turns]}) + "\n") * 9)
        made = [self.make(f'sources = [{{path = "{path}", format = "chat", label_mask = "answer"}}]\nseq_len = 48\n'
                          'validation_sequences = 0') for path in (theirs, ours)]
        for theirs, ours in zip(*made):
            np.testing.assert_array_equal(theirs, ours)

    def test_chat_counts_the_assistants_turns(self):
        messages = [{"role": "user", "content": "alpha"}, {"role": "assistant", "content": "beta"},
                    {"role": "user", "content": "gamma"}, {"role": "assistant", "content": "delta"}]
        path = self.write("c.jsonl", (json.dumps({"messages": messages}) + "\n") * 6)
        ids, mask, starts, _ = self.make(
            f'sources = [{{path = "{path}", format = "chat", label_mask = "answer"}}]\nseq_len = 48\n'
            'validation_sequences = 0', stage="finetune")
        begin = np.flatnonzero(starts.ravel())
        document, keep = ids.ravel()[begin[0]:begin[1]], mask.ravel()[begin[0]:begin[1]].astype(bool)
        self.assertEqual(self.decode(document).count("<end>"), 4)
        self.assertEqual(self.decode(document[keep]), "beta<end>\ndelta<end>\n")

    def test_evaluate_keeps_only_validation_or_everything(self):
        path = self.records("r.json", 60)
        source = f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\n'
        held, *_, num_train = self.make(source + "validation_sequences = 4", stage="evaluate")
        self.assertEqual((len(held), num_train), (4, 0))
        same, *_, train = self.make(source + "validation_sequences = 4", stage="transfer")
        np.testing.assert_array_equal(held, same[train:])
        everything, *_, num_train = self.make(source + "validation_sequences = 0\nmax_sequences = 5", stage="evaluate")
        self.assertEqual((len(everything), num_train), (5, 0))

    def test_a_named_text_is_read_whole_as_far_as_max_sequences_goes(self):
        source = f'sources = [{{path = "{self.records("other.json", 12)}", format = "records"}}]\n'
        whole = self.make(source, stage="evaluate")[0]
        for most, count in ((0, len(whole)), (3, 3)):
            ids, *_, num_train = self.make(f'{source}text = "other"\nmax_sequences = {most}', stage="evaluate")
            self.assertEqual(num_train, 0)
            np.testing.assert_array_equal(ids, whole[:count])
        self.assert_refused(f'sources = [{{path = "{self.write("short.txt", "word")}"}}]\ntext = "other"', "'other'",
                            "shorter than one sequence of 16 tokens", stage="evaluate")

    def test_what_one_stage_is_evaluated_on_no_other_stage_learns(self):
        path = self.records("r.json", 80)
        for split in ("documents", "sequences"):
            streams = {}
            for stage, seq_len, count in (("transfer", 16, 2), ("finetune", 24, 0), ("evaluate", 32, 6)):
                done = self.run_program(f'sources = [{{path = "{path}", format = "records"}}]\nsplit = "{split}"\n'
                                        f"seq_len = {seq_len}\nvalidation_sequences = {count}\nheld_out = {6 * 32}",
                                        stage, f"{stage}.h5")
                self.assertEqual(done.returncode, 0, done.stderr)
                with h5py.File(self.root / f"{stage}.h5") as file:
                    kept = slice(0, int(file.attrs["num_train"])) if stage != "evaluate" else slice(None)
                    streams[stage] = file["input_ids"][kept].astype("<i4").tobytes()
            window = 12 * 4  # bytes
            for stage in ("transfer", "finetune"):
                seen = [i for i in range(0, len(streams["evaluate"]) - window, window)
                        if streams["evaluate"][i:i + window] in streams[stage]]
                self.assertEqual(seen, [], f"{split}: evaluated tokens in the training part of {stage}")

    def test_max_sequences_limits_training_only(self):
        path = self.records("r.json", 60)
        for split in ("documents", "sequences"):
            ids, *_, num_train = self.make(f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\n'
                                           f'validation_sequences = 4\nmax_sequences = 6\nsplit = "{split}"')
            self.assertEqual((len(ids), num_train), (10, 6))

    def test_the_file_is_the_same_bytes_again_and_its_hash_is_the_datasets(self):
        path = self.records("r.json", 30)
        section = f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\nvalidation_sequences = 2'
        ids, mask, starts, _ = self.make(section)
        first = hashlib.sha256((self.root / "out.h5").read_bytes()).hexdigest()
        self.make(section)
        self.assertEqual(hashlib.sha256((self.root / "out.h5").read_bytes()).hexdigest(), first)
        with h5py.File(self.root / "out.h5") as file:
            data = ids.astype("<i4").tobytes() + mask.tobytes() + starts.tobytes()
            self.assertEqual(file.attrs["content_hash"], xxhash.xxh3_128_hexdigest(data))
            self.assertEqual((ids.dtype, mask.dtype, starts.dtype), (np.int32, np.uint8, np.uint8))

    def test_a_tokens_file_is_a_source_and_a_flipped_bit_in_it_is_found(self):
        path = self.records("r.json", 60)
        ids, *_, num_train = self.make(f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\n'
                                       'validation_sequences = 4')
        copy = self.root / "ready.h5"
        copy.write_bytes((self.root / "out.h5").read_bytes())
        section = f'sources = [{{path = "{copy}", format = "tokens"}}]\nseq_len = 16\nmax_sequences = 3'
        again, *_, train = self.make(section)
        np.testing.assert_array_equal(again, np.concatenate([ids[:3], ids[num_train:]]))
        self.assertEqual(train, 3)
        self.assert_refused(section.replace("seq_len = 16", "seq_len = 32"), "sequences of 16 tokens", "seq_len is 32")
        with h5py.File(copy, "r+") as file:
            file["input_ids"][1, 5] ^= 1
        self.assert_refused(section, "ready.h5", "content hash", "damaged")

    def test_a_field_with_text_that_is_not_read_is_one_warning(self):
        path = self.write("w.jsonl", "".join(json.dumps({"text": sentence(i, 9), "summary": f"what {i} says, in a few words"})
                                             + "\n" for i in range(40)))
        done = self.run_program(f'sources = [{{path = "{path}", format = "jsonl", template = "{{text}}"}}]\n'
                                'seq_len = 16\nvalidation_sequences = 1')
        self.assertEqual(done.returncode, 0, done.stderr)
        events = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([event["text"] for event in events if event["event"] == "warning"],
                         [f"{path}:1: the field 'summary' holds text that format \"jsonl\" does not read"])

    def test_gzip_text_is_read(self):
        path = self.root / "t.txt.gz"
        path.write_bytes(gzip.compress("\n\n".join(sentence(i, 30) for i in range(20)).encode()))
        ids, *_ = self.make(f'sources = [{{path = "{path}"}}]\nseq_len = 16\nvalidation_sequences = 2')
        self.assertGreater(len(ids), 10)

    def test_wrong_input_is_one_line_that_names_what(self):
        good = self.records("r.json", 20)
        text = self.write("t.txt", sentence(1, 30))
        source = f'sources = [{{path = "{good}", format = "records"}}]\n'
        bad_json = self.write("bad.jsonl", '{"q": "x"}\n{"q": \n')
        strange = self.write("share.jsonl", '{"conversations": [{"from": "narrator", "value": "x"}]}')
        fifo = self.root / "fifo"
        os.mkfifo(fifo)
        not_utf8 = self.root / "latin.txt"
        not_utf8.write_bytes(b"caf\xe9")
        for section, words in (
            (source + "seq_len = 100000", ("give 0 sequences", "seq_len")),
            ('sources = [{path = "no.txt"}]', ("no.txt", "no such file")),
            (f'sources = [{{path = "{fifo}"}}]', ("fifo: is a FIFO; name a regular file",)),
            (f'sources = [{{path = "{fifo}", format = "tokens"}}]', ("fifo: is a FIFO",)),
            ('sources = [{path = "/dev/zero"}]', ("/dev/zero: is a device",)),
            ('sources = [{path = "."}]', ("is a directory",)),
            (f'sources = [{{path = "{good}", format = "jsonl", template = "{{text}}"}}]',
             ("record 0", "names 'text'", "'instruction'")),
            (f'sources = [{{path = "{strange}", format = "chat"}}]', ("share.jsonl:1", "'from'", "human", "'narrator'")),
            (f'sources = [{{path = "{good}", format = "jsonl", template = "{{missing}}"}}]', ("record 0", "'missing'")),
            (f'sources = [{{path = "{bad_json}", format = "jsonl", template = "{{q}}"}}]', ("bad.jsonl:2", "JSON")),
            (f'sources = [{{path = "{not_utf8}"}}]', ("byte 3", "UTF-8")),
            (source + "eos_token_id = 99999", ("99999", "outside the vocabulary")),
            (self.root / "none.json", ("none.json: no such file",)),
            (bad_json, ("bad.jsonl: is no data section as hedgerow writes it",)),
            (source + "seq_length = 16", ("section.json", "'seq_length'")),
        ):
            with self.subTest(section=section):
                self.assert_refused(section, *words)

    def test_a_model_file_that_is_a_fifo_is_refused_and_not_waited_for(self):
        path = self.model / "chat_template.jinja"
        os.mkfifo(path)
        self.addCleanup(path.unlink)
        self.assert_refused(f'sources = [{{path = "{self.records("fifo.json", 5)}", format = "records"}}]',
                            "chat_template.jinja: is a FIFO; name a regular file")

    def test_token_ids_outside_the_vocabulary_are_refused(self):
        self.addCleanup(self.configure, self.tokenizer.get_vocab_size())
        self.configure(20)
        path = self.records("r.json", 20)
        self.assert_refused(f'sources = [{{path = "{path}", format = "records"}}]\nseq_len = 16\nvalidation_sequences = 1',
                            "outside the vocabulary (20 entries)", "sequence 0, position 0")

    def test_text_answers_line_by_line_and_survives_bad_requests(self):
        requests = [{"encode": "alpha beta"}, {"decode": self.encode("alpha beta") + [EOS]}, {"decode": [10**6]}, {"x": 1},
                    {"chat": [{"role": "user", "content": "alpha"}]}]
        done = subprocess.run([sys.executable, support.HUGGINGFACE / "text.py", "--model", self.model],
                              input="".join(json.dumps(r) + "\n" for r in requests) + "not json\n",
                              capture_output=True, text=True, timeout=60)
        replies = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(replies[0]["ids"], self.encode("alpha beta"))
        self.assertEqual(replies[1]["text"], "alpha beta")
        self.assertIn("1000000", replies[2]["error"])
        self.assertIn("error", replies[3])
        self.assertTrue(self.decode(replies[4]["ids"]).endswith("<begin>assistant\n"))
        self.assertIn("not valid JSON", replies[5]["error"])


if __name__ == "__main__":
    unittest.main()
