"""`generate --ranks`: the real command over MPI, on SmolLM2's first four layers, and on a model that no rank could hold.

Catches: a rank that loads more than its share, text that depends on the number of ranks, ranks that outlive the command, an
error that is mpirun's frame and not the reason.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
import job  # noqa: E402
import sparse_model  # noqa: E402

if not shutil.which("mpirun"):
    raise unittest.SkipTest("no mpirun on this machine")

MPIRUN = ("mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "btl_vader_single_copy_mechanism", "none")
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
VOCABULARY, HIDDEN, LAYERS = 64, 2048, 16


class TheCommand(unittest.TestCase):
    def setUp(self) -> None:
        self.job = job.Job()
        self.addCleanup(self.job.close)
        self.model = self.job.root / "model"  # every process of ours names it
        self.model.symlink_to(self.job.model)

    def loaded_rank(self, rank: int) -> int | None:
        """Its process, once it has begun to read the model: MPI is up by then."""
        for pid in self.job.named("hedgerow-worker", "generate"):
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid if "model.safetensors" in Path(f"/proc/{pid}/maps").read_text() else None
        return None

    def test_its_output_is_that_of_one_process(self) -> None:
        for how in ((), ("--temperature", "0.8", "--top-p", "0.9", "--seed", "4"), ("--chat",)):
            words = ("generate", "--model", self.model, "--json", "--max-new-tokens", "12", *how, "A hacker is",
                     "The file that holds it all was first written at a laboratory in which nobody slept")
            alone, together = self.job.command(*words), self.job.command(*words, "--ranks", "2")
            self.assertEqual(alone.code, 0, alone)
            self.assertEqual((together.code, together.out), (0, alone.out), together)

    def test_an_interrupt_ends_every_rank(self) -> None:
        words = ("generate", "--model", self.model, "--ranks", "2", "--max-new-tokens", "1000000", "A hacker is")
        with self.job.started(*words) as process:
            job.wait_until(lambda: self.loaded_rank(1), process)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 4, err)
            job.wait_until(lambda: True if not self.job.processes() else None, None)

    def test_a_lost_rank_is_one_error_that_names_it(self) -> None:
        words = ("generate", "--model", self.model, "--ranks", "3", "--max-new-tokens", "1000000", "A hacker is")
        with self.job.started(*words) as process:
            os.kill(job.wait_until(lambda: self.loaded_rank(1), process), signal.SIGKILL)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 5, err)
            self.assertIn("process rank 1", " ".join(err.split()))
            self.assertEqual(err.count("hedgerow generate:"), 1, err)
            job.wait_until(lambda: True if not self.job.processes() else None, None)

    def test_an_error_of_the_ranks_is_said_once_with_the_code_of_one_process(self) -> None:
        weights = self.job.root / "damaged"
        shutil.copytree(self.job.model, weights, symlinks=False)
        with (weights / "model.safetensors").open("r+b") as file:
            header = struct.unpack("<Q", file.read(8))[0]
            begin = json.loads(file.read(header))["model.layers.3.mlp.down_proj.weight"]["data_offsets"][0]
            file.seek(8 + header + begin)
            file.write(b"\xc0\x7f")  # not a number
        for ranks in ("1", "2"):
            ended = self.job.command("generate", "--model", weights, "--ranks", ranks, "A hacker is")
            self.assertEqual(ended.code, 2, ended)
            self.assertIn("model.layers.3.mlp.down_proj.weight' has a value that is not finite", " ".join(ended.err.split()))
            self.assertEqual(ended.err.count("hedgerow generate:"), 1, ended)

    def test_a_number_that_is_not_mpiruns_is_refused(self) -> None:
        done = subprocess.run([*MPIRUN, "-n", "2", self.job.bin / "hedgerow-worker", "generate", "--ranks", "3", "--model",
                               self.model],
                              input="{}", capture_output=True, text=True, timeout=60, env={**os.environ, **AS_ROOT})
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("--ranks 3, but mpirun started 2", done.stderr)


class AModelThatNoRankCouldHold(unittest.TestCase):
    """16 layers of zeros between an embedding and a head that make of every token the next one."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.bin = job.binary_directory()
        temporary = tempfile.TemporaryDirectory(prefix="hedgerow-ranks-")
        cls.addClassCleanup(temporary.cleanup)
        cls.model = sparse_model.write_sparse_model(Path(temporary.name) / "model", layers=LAYERS, hidden=HIDDEN,
                                                    intermediate=8192, heads=16, kv_heads=4, vocabulary=VOCABULARY)
        one = struct.pack("<H", 0x3F80)  # 1.0 in bf16
        with (cls.model / "outer.safetensors").open("r+b") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(size))

            def write(name: str, index: int, values: bytes) -> None:
                file.seek(8 + size + header[name]["data_offsets"][0] + 2 * index)
                file.write(values)

            write("model.norm.weight", 0, one * HIDDEN)
            for token in range(VOCABULARY):
                write("model.embed_tokens.weight", token * HIDDEN + token, one)
                write("lm_head.weight", (token + 1) % VOCABULARY * HIDDEN + token, one)
        cls.limit = sum(file.stat().st_size for file in cls.model.glob("*.safetensors")) // 4

    def generate(self, ranks: int) -> subprocess.CompletedProcess:
        limited = ("sh", "-c", 'ulimit -d "$0" && exec "$@"', str(self.limit // 1024), self.bin / "hedgerow-worker")
        return subprocess.run([*MPIRUN, "-n", str(ranks), *limited, "generate", "--model", self.model, "--ranks", str(ranks),
                               "--compute-dtype", "bf16", "--max-new-tokens", "3", "--threads", "1"],
                              input=json.dumps({"prompts": [[7, 9, 20], [61]]}), capture_output=True, text=True, timeout=240,
                              env={**os.environ, **AS_ROOT})

    def test_ranks_of_a_quarter_of_its_memory_generate(self) -> None:
        done = self.generate(8)
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {line["row"]: line["ids"] for line in map(json.loads, done.stdout.splitlines()) if "row" in line}
        self.assertEqual(rows, {0: [21, 22, 23], 1: [62, 63, 0]})

    def test_two_of_them_say_that_their_memory_is_too_small(self) -> None:
        done = self.generate(2)
        self.assertEqual(done.returncode, 5, done.stderr)
        self.assertIn("generate ran out of memory", done.stderr)


if __name__ == "__main__":
    unittest.main()
