"""Capture and transfer of a real model's first layers (HEDGEROW_TEST_MODEL) on real text, in one process.

What it would catch: maps that do not learn from real activations as the method promises, a teacher stream that is wrong
behind the first block, and results that depend on layers_per_block with bf16 products.
"""

import gzip
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(SOURCE / "tests" / "huggingface"))
from tokens_section import write_section  # noqa: E402

MODEL = os.environ.get("HEDGEROW_TEST_MODEL", "")
CACHE = pathlib.Path(os.environ.get("HEDGEROW_CACHE", pathlib.Path.home() / ".cache" / "hedgerow"))
TEXT = CACHE / "data" / "jargon.txt.gz"

RECIPE = """
seed = 1
[model]
path = "{model}"
[data.transfer]
seq_len = 128
validation_sequences = 8
max_sequences = 80
sources = [{{ path = "{text}", format = "text" }}]
[attention]
feature_dim = 64
start = "orthogonal"
window = "terraced"
window_size = 16
[plan]
layers_per_block = {k}
sequences_per_forward = 4
shard_mib = 8
compute_dtype = "{dtype}"
[transfer]
max_steps = 12
sequences_per_step = 4
validate_every = 6
validation_sequences = 4
[finetune]
enabled = false
"""


@unittest.skipUnless(pathlib.Path(MODEL, "config.json").exists(), "HEDGEROW_TEST_MODEL names no model directory")
@unittest.skipUnless(TEXT.exists(), f"{TEXT} is not there: deploy/setup --tests")
class RealCut(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.root = pathlib.Path(self.directory.name)
        with gzip.open(TEXT, "rt", errors="replace") as text:
            (self.root / "text.txt").write_text(text.read()[100000:300000])

    def linearize(self, k, dtype):
        run = self.root / f"k{k}-{dtype}"
        (run / "tokens").mkdir(parents=True)
        (run / "run.toml").write_text(RECIPE.format(model=MODEL, text=self.root / "text.txt", k=k, dtype=dtype))
        section = write_section(run / "section.json", [{"path": self.root / "text.txt"}], seq_len=128, validation_sequences=8,
                                max_sequences=80)
        subprocess.run([sys.executable, SOURCE / "deploy/huggingface/make_tokens.py", "--section", section, "--model", MODEL,
                        "--out", run / "tokens/transfer.h5"],
                       check=True, stdout=subprocess.DEVNULL)
        binary = pathlib.Path(os.environ["HEDGEROW_BIN"], "local_run")
        subprocess.run([binary, run], check=True, stdout=subprocess.DEVNULL)
        history = {}
        for file in sorted(run.glob("attempts/*/metrics.jsonl")):
            for line in file.read_text().splitlines():
                metrics = json.loads(line)
                if "attention" in metrics:
                    continue
                history.setdefault(metrics["layer"], {})[metrics["step"]] = metrics["mse"]
        maps = hashlib.sha256((run / "student/feature_maps.safetensors").read_bytes()).hexdigest()
        return history, maps

    def test_error_falls_on_every_layer_and_k_changes_no_byte(self):
        for dtype in ("fp32", "bf16"):
            with self.subTest(dtype=dtype):
                history, maps = self.linearize(4, dtype)
                before = sum(layer[0] for layer in history.values()) / len(history)
                after = sum(layer[12] for layer in history.values()) / len(history)
                self.assertLess(after, 0.5 * before, "mean MSE over layers after 12 steps")
                for layer, mse in history.items():
                    self.assertLess(mse[12], 0.8 * mse[0], f"layer {layer}")
                for k in (3, 1):
                    self.assertEqual(self.linearize(k, dtype)[1], maps, f"k = {k}")


if __name__ == "__main__":
    unittest.main()
