"""What a run reads of its texts: of each source its share, no more of a long file than the stages visit, and once for stages that
ask for the same. The real tokenizer and the real programs.

Catches: a second source that is never visited behind a long first one, a stage that is trained on what another is judged by, a file
of a hundred megabytes that is read for five, stages that tokenize the same text each.
"""

from __future__ import annotations

import os
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402

try:
    import h5py
    import numpy as np
except ImportError as error:
    raise unittest.SkipTest(f"{error}; deploy/setup installs it") from None

WORDS = "The coordinator grants a lease to each worker of the run and a worker renews it while the block is being trained."
NUMBERS = "7 43 19 88 5 61 30 92 14 76 23 50 8 67 39 11 84 2 95 46"
BIG_BYTES = 100_000_000
RECIPE = """[model]
path = "{model}"
[data.transfer]
sources = [{sources}]
seq_len = 64
validation_sequences = 4
[data.evaluate]
seq_len = 64
validation_sequences = 2
sources = [{sources}]
[attention]
window_size = 16
recall_cache = 8
[plan]
layers_per_block = 2
shard_mib = 1
[transfer]
max_steps = {transfer_steps}
sequences_per_step = 4
validation_sequences = 4
[finetune]
max_steps = {finetune_steps}
sequences_per_step = 4
validate_every = 0
threads = 1
[workers]
local = 1
threads = 1
"""


def bytes_read() -> int:
    """By this process and the children that it has waited for."""
    return int(Path("/proc/self/io").read_text().split()[1])


class Sources(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory(prefix="hedgerow-sources-")
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)

    def text(self, name: str, paragraph: str, size: int) -> Path:
        path = self.root / name
        one = "".join(f"{paragraph}\n" for _ in range(8)) + "\n"
        with path.open("w") as file:
            for _ in range(-(-size // (len(one) * 1000))):
                file.write(one * 1000)
            file.truncate(size)
        return path

    def made(self, sources: str, transfer_steps: int = 24, finetune_steps: int = 8) -> job.Job:
        one = job.Job()
        one.remembers_tokens = False
        self.addCleanup(one.close)
        one.recipe.write_text(RECIPE.format(model=one.model, sources=sources, transfer_steps=transfer_steps,
                                            finetune_steps=finetune_steps))
        return one

    def tokenized(self, one: job.Job) -> tuple[np.ndarray, np.ndarray]:
        """The transfer's sequences to train on, and those that are held out."""
        out = one.root / "out.h5"
        ended = one.command("tokenize", "--recipe", one.recipe, "--stage", "transfer", "--out", out)
        self.assertEqual(ended.code, 0, ended)
        with h5py.File(out) as file:
            count = int(file.attrs["num_train"])
            return file["input_ids"][:count], file["input_ids"][count:]

    def of_numbers(self, one: job.Job, rows: np.ndarray) -> np.ndarray:
        """Which sequences are of NUMBERS: SmolLM2 makes a token of each digit, and WORDS has none."""
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(one.model / "tokenizer.json"))
        return np.isin(rows, [tokenizer.token_to_id(digit) for digit in "0123456789"]).any(axis=1)

    def test_each_source_gives_its_share_from_the_beginning_to_the_end_of_the_training(self) -> None:
        words, numbers = self.text("words.txt", WORDS, 3_000_000), self.text("numbers.txt", NUMBERS, 1_000_000)
        for name, weights, share in (("sizes", ("", ""), 1 / 4), ("weights", (", weight = 1.0", ", weight = 2.0"), 2 / 3)):
            with self.subTest(name):
                one = self.made(f'{{ path = "{words}"{weights[0]} }}, {{ path = "{numbers}"{weights[1]} }}')
                train, _ = self.tokenized(one)
                self.assertEqual(len(train), 96)
                of_numbers = self.of_numbers(one, train)
                self.assertEqual(of_numbers.sum(), round(96 * share))
                for part in np.split(of_numbers, 4):
                    self.assertAlmostEqual(part.mean(), share, delta=0.06)

    def test_where_a_source_is_too_short_the_others_give_more(self) -> None:
        words, numbers = self.text("words.txt", WORDS, 3_000_000), self.text("numbers.txt", NUMBERS, 2_000)
        one = self.made(f'{{ path = "{numbers}", weight = 1.0 }}, {{ path = "{words}", weight = 1.0 }}')
        train, _ = self.tokenized(one)
        of_numbers = self.of_numbers(one, train)
        self.assertEqual(len(train), 96)
        self.assertGreater(of_numbers.sum(), 10)
        self.assertLess(of_numbers.sum(), 48)

    def test_generated_pass_keys_are_a_source_with_lengths_in_the_models_tokens(self) -> None:
        from tokenizers import Tokenizer
        words = self.text("words.txt", WORDS, 3_000_000)
        keys = self.root / "keys.json"
        keys.write_text('{"samples": 400, "lengths": [96, 128], "seed": 3}')
        one = self.made(f'{{ path = "{keys}", format = "passkey", weight = 1.0, shots = 2 }}, {{ path = "{words}", weight = 1.0 }}')
        train, _ = self.tokenized(one)
        tokenizer = Tokenizer.from_file(str(one.model / "tokenizer.json"))
        texts = [tokenizer.decode(row.tolist()) for row in train]
        of_keys = [text for text in texts if "pass key" in text or "The grass is green" in text]
        self.assertEqual(len(of_keys), 48)
        questions = "".join(of_keys).count("The pass key is")
        self.assertAlmostEqual(48 * 64 / 112, questions / 2, delta=6, msg="a record asks once and says it once, in 112 tokens")
        one = self.made(f'{{ path = "{keys}", format = "passkey" }}, {{ path = "{words}" }}')
        ended = one.command("tokenize", "--recipe", one.recipe, "--stage", "transfer", "--out", self.root / "out.h5")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("give each one a weight", ended.err)

    def test_weights_of_some_sources_alone_are_refused(self) -> None:
        words, numbers = self.text("words.txt", WORDS, 100_000), self.text("numbers.txt", NUMBERS, 100_000)
        one = self.made(f'{{ path = "{words}", weight = 1.0 }}, {{ path = "{numbers}" }}')
        ended = one.command("tokenize", "--recipe", one.recipe, "--stage", "transfer", "--out", self.root / "out.h5")
        self.assertEqual(ended.code, 2, ended)
        self.assertIn("give 1 of 2 texts a weight", ended.err)

    def test_of_a_long_text_no_more_is_read_than_its_stages_visit(self) -> None:
        steps = 5_000_000 // (4 * 64 * 5)  # about 5 MB of it: a token is five characters here
        read = {}
        for name, size in (("short", 100_000), ("long", BIG_BYTES)):
            one = self.made(f'{{ path = "{self.text(name, WORDS, size)}" }}', transfer_steps=steps if name == "long" else 24)
            before = bytes_read()
            train, held = self.tokenized(one)
            read[name] = bytes_read() - before
            self.assertEqual(len(held), 4)
        self.assertEqual(len(train), steps * 4)
        more = read["long"] - read["short"]
        self.assertGreater(more, 5_000_000 - 100_000)
        self.assertLess(more, 32_000_000, f"{more} bytes of {BIG_BYTES}: {read}")

    def test_stages_with_one_section_have_their_tokens_in_one_file_and_train_on_it(self) -> None:
        one = self.made(f'{{ path = "{self.text("words.txt", WORDS, 400_000)}" }}', transfer_steps=4, finetune_steps=6)
        ended = one.run()
        self.assertEqual(ended.code, 0, ended)
        transfer, finetune = (one.run_directory / "tokens" / f"{stage}.h5" for stage in ("transfer", "finetune"))
        self.assertTrue(os.path.samefile(transfer, finetune))
        with h5py.File(finetune) as file:
            self.assertEqual(int(file.attrs["num_train"]), 6 * 4, "as many as the longer stage visits")
        self.assertEqual(one.command("check", "--run", one.run_directory).code, 0)


if __name__ == "__main__":
    unittest.main()
