"""encode_text.py on a WordPiece tokenizer that is made here, and `hedgerow lab encoder --model` where it cannot run.

Catches: special tokens in the middle of the text, a text cut at a model's longest sequence, a directory that is no BERT and an
error that does not say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support

support.require("tokenizers", "transformers", "safetensors")

from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s", "on", "mat"]
LINES = ["the cat sat", "", "the cats sat on the mat " * 20]


class EncodeText(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "text.txt").write_text("\n".join(LINES))

    def save_tokenizer(self, **special: str) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", model_max_length=16, **special)
        tokenizer.save_pretrained(self.folder)
        return tokenizer

    def encode(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, support.HUGGINGFACE / "encode_text.py", "--model", self.folder, "--text",
                               self.folder / "text.txt", "--out", self.folder / "out.safetensors"], capture_output=True, text=True)

    def test_it_is_the_text_line_after_line_without_special_tokens_and_names_the_ends(self) -> None:
        tokenizer = self.save_tokenizer(cls_token="[CLS]", sep_token="[SEP]")
        done = self.encode()
        self.assertEqual(done.returncode, 0, done.stderr)
        found = load_file(self.folder / "out.safetensors")
        expected = [i for line in LINES for i in tokenizer.backend_tokenizer.encode(line, add_special_tokens=False).ids]
        self.assertEqual(found["ids"].tolist(), expected)
        self.assertGreater(len(expected), 100)
        self.assertEqual(found["ends"].tolist(), [2, 3])
        self.assertEqual(json.loads(done.stdout)["tokens"], len(expected))

    def test_what_is_no_bert_is_refused_by_name(self) -> None:
        for said in ("tokenizer.json: no such file", "has no [CLS] and [SEP]"):
            done = self.encode()
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)
            self.save_tokenizer()

    def test_a_study_that_trains_its_own_takes_no_model(self) -> None:
        program = Path(os.environ.get("HEDGEROW_BIN", "")) / "hedgerow"
        if not program.is_file():
            self.skipTest("HEDGEROW_BIN is not set")
        for words, said in ((["recall"], "study 'recall' trains its own"), (["encoder"], "name a text file")):
            done = subprocess.run([program, "lab", *words, "--model", self.folder], capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, done)
            self.assertIn(said, done.stderr)


if __name__ == "__main__":
    unittest.main()
