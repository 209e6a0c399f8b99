"""deploy/seventy-billion.md, rehearsed: its `sh` blocks, in their order, as they stand there but for SUBSTITUTIONS and SIZES, on a
real Slurm of two nodes and a model of 80 layers that is narrow; and its run once more in an image, by a stand-in for Apptainer.

Catches: a command of the page that our programs, Slurm or the shell do not take; a step that lacks what an earlier one should
have made; a mesh of stages that does not come together over two nodes; an export of 80 layers that transformers does not load; a job
in an image that lacks a folder, or that looks for srun and mpirun inside.
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
    (r"--tokens 20M\b", "--tokens 16384"),
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
    (r"(?m)^recall_cache = 32\b", "recall_cache = 8"),          # at most a window
    (r"(?m)^ranks = \d+ ", "ranks = 4 "),                       # a pipeline a node
    (r'(?m)^mesh = "auto"', 'mesh = "2x2"'),
    (r"(?m)^layers_per_block = 0 ", "layers_per_block = 5 "),    # many blocks
    (r"(?m)^shard_mib = 256\b", "shard_mib = 1"),
)

# What `apptainer` is here: refuses words that it should not get, notes the rest, and runs the command behind the image's name where
# Slurm and MPI have no programs, as in an image.
APPTAINER = """#!/bin/bash
refuse() { echo "apptainer: $*" >&2; exit 255; }
echo "$SLURMD_NODENAME $*" >> '@notes@'
[ "$1" = exec ] || refuse "expected exec, got $1"
shift
bound=()
while [[ $1 == --* ]]; do
  [ "$1" = --bind ] || refuse "unexpected $1: no node has a GPU"
  [ -d "$2" ] || refuse "cannot bind $2"
  bound+=("$2")
  shift 2
done
[ "$1" = '@image@' ] && [ -e "$1" ] || refuse "no image $1"
shift
[ "${bound[*]}" = '@folders@' ] || refuse "bound are ${bound[*]}"
PATH='@outside@':$PATH
exec "$@"
"""

began = time.monotonic()


def say(block: str, begun: float) -> None:
    print(json.dumps({"test": "seventy-billion", "block": block, "seconds": round(time.monotonic() - begun, 1)}), flush=True)


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.S | re.M)


def write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


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
        cls.run_in_an_image(binaries)

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
    def run_in_an_image(cls, binaries: Path) -> None:
        cls.boxed, outside, programs = cls.shared / "runs" / "boxed", cls.shared / "outside", cls.shared / "programs"
        image, cls.notes = cls.folder / "hedgerow.sif", cls.shared / "apptainer.notes"
        folders = f"{cls.shared / 'models' / 'llama-3.1-70b'} {cls.boxed} {cls.folder}"
        for folder in (outside, programs):
            folder.mkdir()
        for name in ("srun", "mpirun", "sbatch"):
            write_program(outside / name, f"#!/bin/bash\necho 'there is no {name} in the image' >&2\nexit 127\n")
        text = APPTAINER
        for name, value in (("notes", cls.notes), ("image", image), ("folders", folders), ("outside", outside)):
            text = text.replace(f"@{name}@", str(value))
        write_program(programs / "apptainer", text)
        (cls.folder / "boxed.toml").write_text(
            re.sub(r"(?m)^layers_per_block = 5 ", "layers_per_block = 40 ", (cls.folder / "recipe.toml").read_text()))
        (cls.folder / "boxes.toml").write_text(
            (cls.folder / "cluster.toml").read_text().replace("[slurm]\n", f'[slurm]\ncontainer = "{image.name}"\n'))
        environment = {**cls.environment, "PATH": f"{programs}:{cls.environment['PATH']}"}

        def submit() -> subprocess.CompletedProcess:
            return subprocess.run(
                [binaries / "hedgerow", "submit", "--slurm", "--run", cls.boxed, "--recipe", "boxed.toml", "--cluster", "boxes.toml"],
                cwd=cls.folder, env=environment, timeout=TIMEOUT_S, capture_output=True, text=True, check=False)

        begun = time.monotonic()
        cls.without_image = submit()
        image.write_bytes(b"an image")
        submitted = submit()
        if submitted.returncode != 0:
            raise AssertionError(submitted.stderr)
        cls.cluster.wait_until_gone(re.findall(r"job (\d+): run", submitted.stdout)[0], TIMEOUT_S)
        say("the run in an image", begun)

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

    def test_an_image_that_is_missing_is_refused_with_its_path(self) -> None:
        self.assertEqual(self.without_image.returncode, 2)
        self.assertIn(f"there is no image {self.folder / 'hedgerow.sif'}; build it", self.without_image.stderr)

    def test_the_run_in_an_image_is_done_by_workers_and_ranks_of_both_nodes(self) -> None:
        logs = [*(self.boxed / "slurm").glob("*.log"), *(self.boxed / "logs").glob("*.log")]
        said = "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in logs)
        status = json.loads(subprocess.run(["hedgerow", "status", "--run", self.boxed, "--json"], env=self.environment,
                                           capture_output=True, text=True, check=True).stdout)
        self.assertEqual(status["state"], "done", said)
        notes = self.notes.read_text().splitlines()
        for words, nodes in (("hedgerow run --run", NODES[:1]), ("hedgerow worker --run", NODES), ("hedgerow-worker finetune", NODES)):
            started = [note.split()[0] for note in notes if f"hedgerow.sif {words}" in note]
            self.assertEqual(sorted(set(started)), nodes, f"{words}\n{said}")
        self.assertEqual(sum("hedgerow-worker finetune" in note for note in notes), 4, "ranks")
        self.assertNotRegex(said, r"there is no \w+ in the image")

    def test_clean_removes_the_hidden_states_alone(self) -> None:
        self.assertEqual(list(self.run_directory.glob("hidden/b*/*.h5")), [])
        self.assertTrue(list(self.run_directory.glob("student/*/feature_maps.safetensors")))
        self.assertTrue(list(self.run_directory.glob("adapter/*/adapter_model.safetensors")))


def tearDownModule() -> None:
    say("all", began)


if __name__ == "__main__":
    unittest.main()
