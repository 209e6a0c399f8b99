"""deploy/seventy-billion.md, rehearsed: its `sh` blocks, in their order, as they stand there but for SUBSTITUTIONS and SIZES, on a
real Slurm of two nodes and a model of 80 layers that is narrow.

Catches: a command of the page that our programs, Slurm or the shell do not take; a step that lacks what an earlier one should
have made; a mesh of stages that does not come together over two nodes; an export of 80 layers that transformers does not load.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
sys.path.append(str(Path(__file__).resolve().parent))
import job  # noqa: E402
import support  # noqa: E402
from cluster import Cluster, wait_until  # noqa: E402

support.require("torch", "transformers", "accelerate", "safetensors")

from narrow_model import LAYERS, write_narrow_model  # noqa: E402

PAGE = job.REPOSITORY / "deploy" / "seventy-billion.md"
LEAST_BLOCKS = 9
COMMANDS = {"init", "doctor", "plan", "submit", "stop", "watch", "status", "explain", "logs", "report", "generate", "export", "clean"}
NODES = ["s1", "s2"]
TIMEOUT_S = 300  # of a block; other work may have the machine

# What the page says (a regular expression) and the rehearsal in its place. One that fits nowhere fails the test. `@` is the
# temporary folder.
SUBSTITUTIONS = (
    (r"/shared\b", "@"),                                        # paths
    (r"--nodes=3\b", "--nodes=2"),                              # two nodes of two tasks
    (r"--peers 3\b", "--peers 2"),
    (r"(?m)^nodes = 3\b", "nodes = 2"),
    (r"(?m)^count = 3\b", "count = 2"),
    (r"(?m)^tasks_per_node = 8\b", "tasks_per_node = 2"),
    (r"\bcpus_per_task = 12\b", "cpus_per_task = 1"),
    (r"--cpus-per-task=96\b", "--cpus-per-task=1"),
    (r"ranks = 24 ", "ranks = 4 "),                             # still a pipeline a node
    (r'mesh = "8x3"', 'mesh = "2x2"'),
    (r"--tokens 20M\b", "--tokens 16384"),                      # two steps
    (r"(?m)^gpus_per_task = .*\n", ""),                         # no GPUs
    (r"(?m)^gpus = .*\n", ""),
    (r"(?m)^gpu_memory_gb = .*\n", ""),
    (r" --gpus-per-task=8\b", ""),
    (r"(?m)^modules = .*\n", ""),                               # no modules
    # Both nodes are this host: Open MPI's files of shared memory, named by host and local rank, would be the same of both.
    (r'"export NCCL_SOCKET_IFNAME=ib0"', '"export OMP_NUM_THREADS=1", "export OMPI_MCA_btl=self,tcp"'),
    (r'bind = "ib0"', 'bind = "127.0.0.1"'),
)
# The recipe's, once a block has made it.
SIZES = (
    (r"(?m)^seq_len = 1024\b", "seq_len = 64"),
    (r"(?m)^validation_sequences = [48]\b", "validation_sequences = 2"),
    (r"(?m)^window_size = 64\b", "window_size = 16"),           # of 64 tokens
    (r"(?m)^shard_mib = 256\b", "shard_mib = 1"),
)

began = time.monotonic()


def say(block: str, begun: float) -> None:
    print(json.dumps({"test": "seventy-billion", "block": block, "seconds": round(time.monotonic() - begun, 1)}), flush=True)


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.S | re.M)


class SeventyBillion(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        binaries = job.binary_directory()
        tokenizer_of, text = job.cut_model(4), job.excerpt()
        temporary = tempfile.TemporaryDirectory(prefix="hedgerow-seventy-", ignore_cleanup_errors=True)
        cls.shared = Path(cls.enterClassContext(temporary))
        cls.cluster = Cluster({"gpu": {"nodes": NODES, "cpus": 2}})
        cls.addClassCleanup(cls.cluster.close)
        cls.run_directory = cls.shared / "runs" / "seventy"
        cls.folder = cls.shared / "seventy"
        cls.folder.mkdir()
        (cls.shared / "runs").mkdir()
        write_narrow_model(cls.shared / "models" / "llama-3.1-70b", tokenizer_of)
        paragraphs = [part for part in gzip.decompress(text.read_bytes()).decode().split("\n\n") if part.strip()]
        (cls.folder / "sample.jsonl").write_text("".join(json.dumps({"text": part}) + "\n" for part in paragraphs))
        cls.environment = {**cls.cluster.environment, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                           "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
        cls.ranks_on: set[str] = set()
        cls.said: list[tuple[str, str]] = []
        cls.fitted: set[str] = set()
        over = threading.Event()
        looking = threading.Thread(target=cls.look_for_ranks, args=(over,))
        looking.start()
        try:
            for block in blocks():
                cls.run_block(block)
        finally:
            over.set()
            looking.join()

    @classmethod
    def look_for_ranks(cls, over: threading.Event) -> None:
        while not over.wait(0.2):
            cls.ranks_on |= {node for node in NODES if cls.cluster.processes_on(node, "hedgerow-worker", "finetune")}

    @classmethod
    def run_block(cls, block: str) -> None:
        commands = block
        for pattern, replacement in SUBSTITUTIONS:
            commands, count = re.subn(pattern, replacement.replace("@", str(cls.shared)), commands)
            cls.fitted |= {pattern} if count else set()
        if "squeue" in block:  # as a person waits who looks at it
            wait_until(lambda: True if (cls.run_directory / "coordinator.json").exists() else None, 60, "the coordinator's start")
        begun = time.monotonic()
        done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=cls.folder, env=cls.environment, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        say(block.splitlines()[0], begun)
        if done.returncode != 0:
            raise AssertionError(f"exit {done.returncode} of\n{commands}\n--- stdout\n{done.stdout[-3000:]}\n--- stderr\n"
                                 f"{done.stderr[-3000:]}\n--- logs\n{cls.log()[-3000:]}")
        cls.said.append((block, done.stdout))
        if "hedgerow init" in block:
            recipe = cls.folder / "recipe.toml"
            text = recipe.read_text()
            for pattern, replacement in SIZES:
                text, count = re.subn(pattern, replacement, text)
                cls.fitted |= {pattern} if count else set()
            recipe.write_text(text)

    @classmethod
    def log(cls) -> str:
        return "\n".join(path.read_text() for path in sorted((cls.run_directory / "slurm").glob("*.log")))

    def output_of(self, command: str) -> str:
        return "".join(output for block, output in self.said if command in block)

    def test_each_block_ran_and_each_substitution_fits_the_page(self) -> None:
        self.assertGreaterEqual(len(self.said), LEAST_BLOCKS, "the page is read wrongly")
        ran = {command for block, _ in self.said for command in re.findall(r"(?:^| )hedgerow ([a-z]+)", block, re.M)}
        self.assertEqual(COMMANDS - ran, set())
        self.assertEqual({pattern for pattern, _ in SUBSTITUTIONS + SIZES} - self.fitted, set())

    def test_the_plan_says_that_it_fits(self) -> None:
        self.assertIn("it fits", self.output_of("hedgerow plan"))
        self.assertIn("simulated", self.output_of("hedgerow plan"))

    def test_the_run_is_done_over_all_layers_with_figures_of_teacher_and_students(self) -> None:
        said = self.output_of("hedgerow status")
        self.assertRegex(said, r"(?m)^run .*: done\b")
        self.assertIn(f"{LAYERS - 5}-{LAYERS - 1}", said)
        for subject in ("teacher", "transfer", "lora"):
            perplexity = re.search(rf"(?m)^{subject} +([0-9.e+]+) ", said)
            self.assertIsNotNone(perplexity, said)
            self.assertTrue(math.isfinite(float(perplexity[1])), said)

    def test_lora_ran_as_a_mesh_over_both_nodes(self) -> None:
        finetune = tomllib.loads((self.run_directory / "run.toml").read_text())["finetune"]
        self.assertEqual((finetune["ranks"], finetune["mesh"]), (4, "2x2"))
        self.assertEqual(self.ranks_on, set(NODES))

    def test_the_run_was_stopped_and_went_on(self) -> None:
        self.assertEqual(len(list((self.run_directory / "slurm").glob("run-*.log"))), 2)
        self.assertIn("job ", self.output_of("hedgerow stop"))

    def test_the_student_goes_on_from_a_prompt(self) -> None:
        self.assertGreater(len(self.output_of("hedgerow generate").strip()), len("A hedge is"))

    def test_the_export_loads_in_transformers_and_its_logits_are_finite(self) -> None:
        self.assertIn("all finite: True", self.output_of("hedgerow export"))

    def test_clean_removes_the_hidden_states_alone(self) -> None:
        self.assertEqual(list(self.run_directory.glob("hidden/b*/*.h5")), [])
        self.assertTrue(list(self.run_directory.glob("student/*/feature_maps.safetensors")))
        self.assertTrue(list(self.run_directory.glob("adapter/*/adapter_model.safetensors")))


def tearDownModule() -> None:
    say("all", began)


if __name__ == "__main__":
    unittest.main()
