"""Wrong input at the level of the real programs: one clear error, the right exit code, and nothing lost.

One run is prepared: killed after its first transfer, kept as it was then, and finished. What a test does, it does to a
copy of one of the two, and a refused command must leave every byte of it as it was.

Catches: a half-made directory that stands in the way of the next try, a message that does not name its object, damage of
a model that shows only hours later, a full disk that costs more than the time it was full, two coordinators on one run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Callable, Iterator

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
sys.path.append(str(Path(__file__).resolve().parents[1] / "huggingface"))
import job  # noqa: E402
from tokens_section import write_section  # noqa: E402

FULL = "No space left on device"
READ_ONLY = "Read-only file system"
ERROR = re.compile(r"^(?:hedgerow(?: \w+)?|error): ", re.MULTILINE)
prepared: Prepared


class Prepared:
    """The shared run: `partial` as a killed coordinator left it, `finished`, and what it came to."""

    def __init__(self) -> None:
        self.job = job.Job()
        self.job.remembers_tokens = False
        self.partial = self.job.root / "partial"
        self.finished = self.job.run_directory
        killed = self.job.run(fault="coordinator.output.renamed:1")
        self.job.kill_leftovers()
        if killed.code != -9:
            raise AssertionError(f"hedgerow run was not killed: {killed}")
        shutil.copytree(self.job.run_directory, self.partial, symlinks=True)
        ended = self.job.run()
        if ended.code != 0:
            raise AssertionError(f"hedgerow run: {ended}")
        self.artifacts = self.job.artifacts()


def setUpModule() -> None:
    global prepared
    prepared = Prepared()
    unittest.addModuleCleanup(prepared.job.close)


def contents(directory: Path) -> dict[str, str]:
    """Every file under a directory with the hash of its bytes, links as what they point to."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@contextlib.contextmanager
def tmpfs(at: Path, size: str) -> Iterator[Callable[[str], None]]:
    """A file system of its own; gives a function that mounts it again with other options."""
    def mount(*words: str) -> None:
        done = subprocess.run(["mount", *words, at], capture_output=True, text=True)
        if done.returncode != 0:
            raise unittest.SkipTest(f"mount is not permitted here: {done.stderr.strip()}")

    at.mkdir()
    mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    try:
        yield lambda options: mount("-o", f"remount,{options}")
    finally:
        subprocess.run(["umount", at], check=True)


class WrongInput(unittest.TestCase):
    def setUp(self) -> None:
        self.job = prepared.job
        self.scratch = self.job.root / self._testMethodName
        self.scratch.mkdir()
        self.new_run = self.scratch / "new-run"

    def assert_refused(self, ended: job.Ended, code: int, *words: str) -> None:
        """One error, no traceback, this exit code, and it says all the words."""
        self.assertEqual(ended.code, code, ended)
        self.assertEqual(len(ERROR.findall(ended.err)), 1, ended)
        self.assertNotIn("Traceback", ended.err)
        for word in words:
            self.assertIn(word, ended.err)

    def copy_of(self, run: Path, to: Path | None = None) -> Path:
        return shutil.copytree(run, to or self.scratch / "run", symlinks=True)

    def recipe(self, *changes: tuple[str, str], name: str = "recipe.toml") -> Path:
        text = self.job.recipe.read_text()
        for before, after in changes:
            self.assertIn(before, text)
            text = text.replace(before, after)
        (self.scratch / name).write_text(text)
        return self.scratch / name

    def script(self, name: str, *words: str | Path) -> job.Ended:
        """One of deploy/huggingface's programs, as the quickstart calls it."""
        done = subprocess.run([sys.executable, job.HUGGINGFACE / name, *map(str, words)], capture_output=True, text=True)
        return job.Ended(done.returncode, done.stdout, done.stderr)

    def worker(self, *words: str | Path, program: str = "hedgerow-worker", given: str = "") -> job.Ended:
        done = subprocess.run([self.job.bin / program, *map(str, words)], capture_output=True, text=True, timeout=60,
                              input=given)
        return job.Ended(done.returncode, done.stdout, done.stderr)


class OwnModel(WrongInput):
    """A model directory whose files may be changed."""

    def setUp(self) -> None:
        super().setUp()
        self.model = self.scratch / "model"
        self.model.mkdir()
        for file in self.job.model.iterdir():
            (self.model / file.name).symlink_to(file)

    def own(self, name: str) -> Path:
        """A file of the model that may be changed."""
        path = self.model / name
        source = path.resolve()
        path.unlink()
        shutil.copyfile(source, path)
        return path


class ModelFiles(OwnModel):
    """Missing, truncated, corrupted and foreign files of a model directory, one at a time."""

    def edit_config(self, **changes: object) -> None:
        path = self.own("config.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    def shard(self) -> list[Path]:
        """model.safetensors as two files and an index; the first is a megabyte and can be damaged at will."""
        path = self.model / "model.safetensors"
        with open(path, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        small = [name for name in header if name.endswith("k_proj.weight")]
        groups = [small, [name for name in header if name not in small]]
        names = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
        for name, group in zip(names, groups):
            places, offset = {}, 0
            for tensor in group:
                begin, end = header[tensor]["data_offsets"]
                places[tensor] = {**header[tensor], "data_offsets": [offset, offset + end - begin]}
                offset += end - begin
            text = json.dumps(places).encode()
            with open(path, "rb") as source, open(self.model / name, "wb") as target:
                target.write(struct.pack("<Q", len(text)) + text)
                for tensor in group:
                    begin, end = header[tensor]["data_offsets"]
                    source.seek(8 + length + begin)
                    target.write(source.read(end - begin))
        index = {"weight_map": {tensor: name for name, group in zip(names, groups) for tensor in group}}
        (self.model / "model.safetensors.index.json").write_text(json.dumps(index))
        path.unlink()
        return [self.model / name for name in names]

    def check(self, *words: str, unseen: str = "") -> None:
        """All commands that open a model refuse it in the same words, and none leaves anything behind. `unseen`: plan and
        init, to which config.json will do, say that they did not see this file."""
        recipe = self.recipe((str(self.job.model), str(self.model)))
        before = contents(self.scratch)
        written = self.scratch / "init.toml"
        for words_of_command in (("plan", "--recipe", recipe, "--run", self.new_run),
                                 ("run", "--run", self.new_run, "--recipe", recipe),
                                 ("init", self.model, "--data", job.TEXT, "--out", written)):
            with self.subTest(words_of_command[0]):
                ended = self.job.command(*words_of_command)
                if unseen and words_of_command[0] != "run":
                    self.assertEqual(ended.code, 0, ended)
                    self.assertIn(f"has no {unseen}", ended.out + ended.err)
                    self.assertIn("the weights were not seen", ended.out + ended.err)
                    written.unlink(missing_ok=True)
                else:
                    self.assert_refused(ended, 2, *words)
        with self.subTest("hedgerow-worker"):
            tokens = prepared.finished / "tokens" / "evaluate.h5"
            ended = self.worker("evaluate", "--model", self.model, "--tokens", tokens)
            self.assertEqual(ended.code, 2, ended)
            for word in words:
                self.assertIn(word, ended.err)
        self.assertFalse(self.new_run.exists(), "a directory for a run that cannot begin")
        self.assertEqual(contents(self.scratch), before)

    def test_config_json_missing(self) -> None:
        (self.model / "config.json").unlink()
        self.check(str(self.model), "config.json is missing", "give a Hugging Face model directory")

    def test_config_json_truncated(self) -> None:
        path = self.own("config.json")
        path.write_bytes(path.read_bytes()[:100])
        self.check(str(path), "not valid JSON at byte", "get or write the file again")

    def test_config_json_of_another_model(self) -> None:
        self.edit_config(num_hidden_layers=5)
        self.check(str(self.model), "model.layers.4.", "is missing, which LlamaForCausalLM with 5 layers needs")
        (self.model / "config.json").unlink()
        (self.model / "config.json").symlink_to(self.job.model / "config.json")
        self.edit_config( intermediate_size=1024)
        self.check("model.safetensors", "[1536, 576], expected a float [1024, 576] by config.json")

    def test_unsupported_architecture(self) -> None:
        self.edit_config(architectures=["GPT2LMHeadModel"], model_type="gpt2")
        self.check("config.json", "GPT2LMHeadModel", "not supported", "LlamaForCausalLM", "MistralForCausalLM",
                   "Qwen2ForCausalLM", "Qwen3ForCausalLM")

    def test_weights_missing_truncated_corrupted_foreign(self) -> None:
        source = (self.model / "model.safetensors").resolve()
        path = self.model / "model.safetensors"
        path.unlink()
        self.check(str(self.model), "neither model.safetensors nor model.safetensors.index.json is there",
                   unseen="model.safetensors")
        with open(source, "rb") as file:
            begin = file.read(200_000)
        path.write_bytes(begin)
        self.check(str(path), "truncated")
        path.write_bytes(begin[:20] + b"\0" + begin[21:])
        self.check(str(path))
        path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        self.check(str(path), "Git LFS")

    def test_pickles_and_gguf_alone(self) -> None:
        (self.model / "model.safetensors").unlink()
        for name in ("pytorch_model.bin", "model.gguf"):
            foreign = self.model / name
            foreign.write_bytes(b"x")
            self.check(str(self.model), name, "convert them to safetensors")
            foreign.unlink()

    def test_a_shard_missing_truncated_corrupted_foreign(self) -> None:
        shard = self.shard()[0]
        whole = shard.read_bytes()
        ended = self.job.command("plan", "--recipe", self.recipe((str(self.job.model), str(self.model))))
        self.assertEqual(ended.code, 0, ended)
        shard.unlink()
        self.check(str(self.model), shard.name, "which is missing", unseen=shard.name)
        shard.write_bytes(whole[:-1])
        self.check(str(shard), "truncated")
        shard.write_bytes(whole[:30] + b'"' + whole[31:])
        self.check(str(shard))
        shard.write_bytes(whole.replace(b"layers.1.self_attn", b"layers.7.self_attn", 1))
        self.check("model.layers.1.self_attn.k_proj.weight", shard.name, "but it is not")

    def test_a_fifo_in_place_of_a_file_is_refused_and_not_waited_for(self) -> None:
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            path = self.model / name
            source = path.resolve()
            path.unlink()
            os.mkfifo(path)
            self.check(f"{path}: is a FIFO; name a regular file")
            path.unlink()
            path.symlink_to(source)

    def test_the_index_truncated_and_leading_elsewhere(self) -> None:
        shard = self.shard()[0]
        index = self.model / "model.safetensors.index.json"
        text = index.read_text()
        index.write_text(text[:len(text) // 2])
        self.check(str(index), "not valid JSON")
        index.write_text(text.replace(shard.name, "../" + shard.name))
        self.check(str(index), "expected the plain name of a .safetensors file")
        index.write_text('{"weight_map": {}}')
        self.check(str(index), "weight_map")

    def test_a_tokenizer_missing_truncated_foreign_and_the_same_command_goes_on_when_it_is_mended(self) -> None:
        recipe = self.recipe((str(self.job.model), str(self.model)))
        tokenizer = self.model / "tokenizer.json"
        source = tokenizer.resolve()
        tokenizer.unlink()
        out = self.scratch / "tokens.h5"
        for content, word, command in (
                (None, "no such file", ("run", "--run", self.new_run, "--recipe", recipe)),
                (source.read_bytes()[:5000], "not a readable tokenizer",
                 ("tokenize", "--recipe", recipe, "--stage", "transfer", "--out", out)),
                (b'{"model": {"type": "other"}}', "not a readable tokenizer",
                 ("generate", "--model", self.model, "A prompt"))):
            with self.subTest(command[0], word=word):
                if content is not None:
                    tokenizer.write_bytes(content)
                self.assert_refused(self.job.command(*command), 2, str(tokenizer), word)
        self.assertFalse(out.exists())
        tokenizer.unlink()
        tokenizer.symlink_to(source)
        # What the coordinator would refuse next comes after the tokens are there.
        ended = self.job.command("run", "--run", self.new_run, "--recipe", recipe, HEDGEROW_WORKER="/no/such/worker")
        self.assert_refused(ended, 5, "hedgerow-worker not found")
        self.assertEqual(len(list((self.new_run / "tokens").iterdir())), 3)

    def test_a_model_that_was_damaged_later_costs_a_run_nothing(self) -> None:
        run = self.copy_of(prepared.partial)
        # Of another model, which neither the journal nor the hash in the first line would let through.
        for name in ("journal", "attempts"):
            shutil.rmtree(run / name)
        recipe = run / "run.toml"
        recipe.write_text(recipe.read_text().split("\n", 1)[1].replace(str(self.job.model), str(self.model)))
        path = self.model / "model.safetensors"
        source = path.resolve()
        path.unlink()
        with open(source, "rb") as file:
            path.write_bytes(file.read(1 << 20))
        before = contents(run)
        self.assert_refused(self.job.command("run", "--run", run), 2, str(path), "get the file again")
        self.assertEqual(contents(run), before)


class Weights(OwnModel):
    """Weights of the right names and shapes that are another teacher's, or that nobody can compute with."""

    def setUp(self) -> None:
        super().setUp()
        self.weights = self.own("model.safetensors")
        with open(self.weights, "rb") as file:
            length = struct.unpack("<Q", file.read(8))[0]
            self.header, self.data = json.loads(file.read(length)), 8 + length

    def edit(self, tensor: str, change: Callable[[bytes], bytes]) -> None:
        begin, end = self.header[tensor]["data_offsets"]
        with open(self.weights, "r+b") as file:
            file.seek(self.data + begin)
            changed = change(file.read(end - begin))
            file.seek(self.data + begin)
            file.write(changed)

    def negate(self, layer: int) -> None:
        """Both signs of a value are as likely; twice is what it was."""
        for name in ("v_proj", "o_proj"):
            self.edit(f"model.layers.{layer}.self_attn.{name}.weight",
                      lambda data: (int.from_bytes(data, "little") ^ int.from_bytes(b"\0\x80" * (len(data) // 2), "little"))
                      .to_bytes(len(data), "little"))

    def test_a_teacher_that_changed_in_place_is_not_trained_on(self) -> None:
        recipe = self.recipe((str(self.job.model), str(self.model)))
        words = ("run", "--run", self.new_run, "--recipe", recipe)
        self.assertEqual(self.job.command(*words, fault="coordinator.shard.renamed:2").code, -9)
        self.job.kill_leftovers()
        for layer in (0, 2):
            self.negate(layer)
        ended = self.job.command(*words)
        self.assertEqual(ended.code, 2, ended)
        for word in ("the weights of layer", f"the run {self.new_run} began with", "hash", "put the old weights back"):
            self.assertIn(word, " ".join(ended.err.split()))
        for layer in (0, 2):
            self.negate(layer)
        # A rank of the finetune stage says it too.
        self.assertEqual(self.job.command(*words, fault="coordinator.checkpoint.finetune").code, -9)
        self.job.kill_leftovers()
        self.negate(3)
        ended = self.job.command(*words)
        self.assertEqual(ended.code, 2, ended)
        explained = self.job.command("explain", "--all", "--run", self.new_run)
        for text in (ended.err, explained.out, self.job.command("status", "--run", self.new_run).out):
            self.assertIn("the weights of layer 3", " ".join(text.split()))
        self.negate(3)
        ended = self.job.command(*words)
        self.assertEqual(ended.code, 0, ended)
        came_to = job.artifacts_of(self.new_run)
        for kind in ("feature maps", "adapter"):
            self.assertEqual(came_to[kind], prepared.artifacts[kind])

    def test_a_student_of_another_teacher_is_refused_by_its_weights(self) -> None:
        self.negate(2)
        student = max(prepared.finished.glob("student/t*"))
        lora = max(prepared.finished.glob("adapter/t*"))
        model = ("--model", self.model, "--student", student)
        out = self.scratch / "out"
        for words in (("generate", *model, "A prompt"),
                      ("evaluate", *model, "--tokens", prepared.finished / "tokens" / "evaluate.h5"),
                      ("export", *model, "--out", out),
                      ("export", *model, "--lora", lora, "--out", out)):
            with self.subTest(words[0], lora=lora in words):
                ended = self.job.command(*words)
                self.assert_refused(ended, 2)
                self.assertIn(f"the weights of layer 2 in {self.model} are not those that the student {student}",
                              " ".join(ended.err.split()))
                self.assertFalse(out.exists())

    def test_weights_that_are_not_finite_are_named_by_every_command_that_loads_them(self) -> None:
        self.edit("model.norm.weight", lambda data: data[:20] + b"\xc0\x7f" + data[22:])
        recipe = self.recipe((str(self.job.model), str(self.model)))
        student = max(prepared.finished.glob("student/t*"))
        lora = max(prepared.finished.glob("adapter/t*"))
        model, out = ("--model", self.model), self.scratch / "out"
        tokens = prepared.finished / "tokens" / "evaluate.h5"
        for words in (("run", "--run", self.new_run, "--recipe", recipe),
                      ("generate", *model, "A prompt"),
                      ("evaluate", *model, "--tokens", tokens),
                      ("evaluate", *model, "--student", student, "--tokens", tokens),
                      ("export", *model, "--student", student, "--out", out),
                      ("export", *model, "--student", student, "--lora", lora, "--out", out)):
            with self.subTest(words[0]):
                ended = self.job.command(*words)
                self.assertEqual(ended.code, 2, ended)
                self.assertIn("file model.safetensors: tensor 'model.norm.weight' has a value that is not finite",
                              " ".join(ended.err.split()))
                self.assertFalse(out.exists())


class Recipes(WrongInput):
    def test_what_does_not_fit_is_refused_with_what_would(self) -> None:
        for change, words in (
            ((("max_steps = 8", "max_steps = 100000000"), ("max_sequences = 36", "max_sequences = 400000000")),
             ("of disk", "are free", "data.transfer.max_sequences")),
            ((("sequences_per_forward = 4", "sequences_per_forward = 65536"),
              ("max_sequences = 36", "max_sequences = 65536"),
              ("sequences_per_step = 4\nvalidate_every = 4", "sequences_per_step = 65536\nvalidate_every = 4")),
             ("needs", "of memory", "plan.sequences_per_forward")),
            ((("ranks = 2", "ranks = 2048"),
              ("sequences_per_step = 4\ncheckpoint_every = 1", "sequences_per_step = 2048\ncheckpoint_every = 1")),
             ("finetune needs", "a rank has", "finetune.ranks = "))):
            recipe = self.recipe(*change)
            with self.subTest(words):
                plan = self.job.command("plan", "--recipe", recipe, "--run", self.new_run)
                self.assertEqual(plan.code, 2, plan)
                text = " ".join(plan.out.split())
                for word in words:
                    self.assertIn(word, text)
                self.assertIn("it does not fit", text)
                self.assert_refused(self.job.command("run", "--run", self.new_run, "--recipe", recipe), 2, *words)
        self.assertFalse(self.new_run.exists())

    def test_a_recipe_that_is_none_by_its_size(self) -> None:
        recipe = self.recipe()
        with recipe.open("a") as file:
            file.write("#" * (1 << 20))
        for words in (("plan", "--recipe", recipe), ("run", "--run", self.new_run, "--recipe", recipe)):
            self.assert_refused(self.job.command(*words), 2, str(recipe), "expected at most 1048576")
        self.assertFalse(self.new_run.exists())

    def test_a_device_that_is_not_here(self) -> None:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            self.skipTest("this machine has a GPU")
        recipe, plain = self.recipe(("[plan]\n", '[plan]\ndevice = "cuda"\n'), name="cuda.toml"), self.recipe()
        for words in (("run", "--run", self.new_run, "--recipe", recipe),
                      ("run", "--run", self.new_run, "--recipe", plain, "--device", "cuda"),
                      ("plan", "--run", self.new_run, "--recipe", plain, "--device", "cuda"),
                      ("generate", "--run", prepared.finished, "--device", "cuda", "A hacker")):
            ended = self.job.command(*words)
            with self.subTest(words):
                self.assert_refused(ended, ended.code, "cuda", '"auto"')
                self.assertIn(ended.code, (2, 5), "a build without CUDA; a machine without a GPU")
        self.assertFalse(self.new_run.exists())

    def test_more_ranks_than_layers_a_machine_without_mpirun_and_a_number_that_is_none(self) -> None:
        for ranks, code, words in (("5", 2, ("--ranks 5", "at least one layer", "has 4", "lower --ranks")),
                                   ("2", 5, ("mpirun", "hedgerow doctor")),
                                   ("0", 2, ("--ranks", "not in range"))):
            with self.subTest(ranks=ranks):
                ended = self.job.command("generate", "--run", prepared.finished, "--ranks", ranks, "A hacker", PATH="/no/such")
                self.assert_refused(ended, code)
                for word in words:
                    self.assertIn(word, " ".join(ended.err.split()))

    def test_another_device_than_the_run_began_with(self) -> None:
        ended = self.job.command("run", "--run", prepared.finished, "--device", "cpu")
        self.assert_refused(ended, 2, "--device cpu differs from the recipe", "plan.device", "begin a new run")

    def test_a_recipe_that_failed_before_anything_was_computed_is_mended_and_given_again(self) -> None:
        text = self.scratch / "latin-1.txt"
        wrong = self.recipe((str(job.excerpt()), str(text)), name="wrong.toml")
        self.assert_refused(self.job.command("run", "--run", self.new_run, "--recipe", wrong), 2, str(text), "no such file")
        self.assertFalse(self.new_run.exists())
        text.write_bytes(b"caf\xe9 " * 10000)  # only who reads it can tell
        self.assert_refused(self.job.command("run", "--run", self.new_run, "--recipe", wrong), 2, str(text), "not UTF-8")
        mended = self.job.command("run", "--run", self.new_run, "--recipe", self.job.recipe,
                                  HEDGEROW_WORKER="/no/such/worker")
        self.assert_refused(mended, 5, "hedgerow-worker not found")
        self.assertIn("the run begins with the new recipe", mended.err)
        self.assertNotIn("latin-1.txt", (self.new_run / "run.toml").read_text())

    def test_token_ids_outside_the_vocabulary(self) -> None:
        import h5py
        import numpy

        sys.path.append(str(job.HUGGINGFACE))
        from make_tokens import content_hash
        run = self.copy_of(prepared.partial)
        tokens = run / "tokens" / "transfer.h5"
        with h5py.File(tokens, "r+") as file:
            file["input_ids"][3, 5] = 49152
            arrays = [numpy.asarray(file[name]) for name in ("input_ids", "loss_mask", "document_starts")]
            file.attrs["content_hash"] = content_hash(*arrays)
        before = contents(run)
        words = ("transfer.h5", "token id 49152", "sequence 3, position 5", "49152 entries")
        self.assert_refused(self.job.command("run", "--run", run), 2, *words)
        self.assertEqual(contents(run), before)
        evaluated = self.worker("evaluate", "--model", self.job.model, "--tokens", tokens)
        self.assertEqual(evaluated.code, 2, evaluated)
        self.assertIn("token id 49152", evaluated.err)
        source = self.recipe((f'{{ path = "{job.excerpt()}", format = "text" }}', f'{{ path = "{tokens}", format = "tokens" }}'))
        out = self.scratch / "out.h5"
        self.assert_refused(self.job.command("tokenize", "--recipe", source, "--stage", "transfer", "--out", out), 2,
                            "token id 49152 at sequence 3, position 5", "do tokenizer and model belong together?")
        self.assertEqual(list(self.scratch.glob("out*")), [])
        generated = self.worker("generate", "--model", self.job.model, given='{"prompts": [[1, 49152]]}')
        self.assertEqual(generated.code, 2, generated)
        self.assertIn("49152", generated.err)


class Disks(WrongInput):
    def test_a_full_disk_stops_the_run_and_more_room_ends_it(self) -> None:
        disk = self.scratch / "disk"
        with tmpfs(disk, "256m") as remount:
            run = self.copy_of(prepared.partial, disk / "run")
            used = os.statvfs(disk)
            kib = (used.f_blocks - used.f_bfree) * used.f_frsize // 1024
            remount(f"size={kib + 512}k")
            full = self.job.command("run", "--run", run, timeout=60)
            self.assert_refused(full, 5, FULL, "free space")
            self.assertEqual(full.err.count("run the same command again"), 1, full)
            status = self.job.command("status", "--run", run, "--json")
            self.assertEqual(json.loads(status.out)["state"], "stopped", status)
            remount("size=256m")
            ended = self.job.command("run", "--run", run, timeout=120)
            self.assertEqual(ended.code, 0, ended)
            finished = job.artifacts_of(run)
        self.assertEqual(finished, prepared.artifacts)

    def test_outputs_on_a_full_disk_leave_nothing_behind(self) -> None:
        disk = self.scratch / "disk"
        with tmpfs(disk, "16k"):
            for command in (("tokenize", "--recipe", self.job.recipe, "--stage", "transfer", "--out", disk / "t.h5"),
                            ("export", "--run", prepared.finished, "--subject", "transfer", "--out", disk / "export"),
                            ("export", "--run", prepared.finished, "--out", disk / "merged"),
                            ("export", "--run", prepared.finished, "--adapter", "--out", disk / "adapter")):
                with self.subTest(command[0], out=command[-1].name):
                    self.assert_refused(self.job.command(*command), 5, FULL, str(disk))
                    self.assertEqual(list(disk.iterdir()), [])
            prepared_model = self.script("prepare.py", "--model", self.job.model, "--layers", "1", "--out", disk / "model")
            self.assert_refused(prepared_model, 5, FULL)
            self.assertEqual(list(disk.iterdir()), [])

    def test_a_read_only_run_is_shown_and_checked_and_never_half_written(self) -> None:
        disk = self.scratch / "disk"
        with tmpfs(disk, "256m") as remount:
            run = self.copy_of(prepared.partial, disk / "run")
            before = contents(run)
            remount("ro")
            for words in (("status",), ("explain",), ("explain", "0"), ("logs",), ("check",), ("stop",)):
                ended = self.job.command(*words, "--run", run)
                self.assertEqual(ended.code, 0, ended)
            self.assert_refused(self.job.command("run", "--run", run), 2, READ_ONLY, str(run))
            self.assert_refused(self.job.command("clean", "--run", run, "--yes"), 2, READ_ONLY, str(run))
            self.assertEqual(contents(run), before)

    def test_outputs_in_a_read_only_directory(self) -> None:
        disk = self.scratch / "disk"
        with tmpfs(disk, "256m") as remount:
            remount("ro")
            for command in (("tokenize", "--recipe", self.job.recipe, "--stage", "transfer", "--out", disk / "t.h5"),
                            ("tokenize", "--recipe", self.job.recipe, "--stage", "transfer", "--out", disk / "new" / "t.h5"),
                            ("export", "--run", prepared.finished, "--out", disk / "export"),
                            ("export", "--run", prepared.finished, "--adapter", "--out", disk / "adapter"),
                            ("init", self.job.model, "--data", job.TEXT, "--out", disk / "recipe.toml"),
                            ("import", "any.pt", "--model", self.job.model, "--out", disk / "student"),
                            ("run", "--recipe", self.job.recipe, "--run", disk / "run")):
                with self.subTest(command[0], out=str(command[-1])):
                    self.assert_refused(self.job.command(*command), 2, READ_ONLY, str(disk))
            section = write_section(self.scratch / "section.json", [{"path": job.TEXT}], max_sequences=8)
            self.assert_refused(self.script("make_tokens.py", "--section", section, "--model", self.job.model, "--out",
                                            disk / "t.h5"), 2, READ_ONLY, "t.h5")
            self.assert_refused(self.script("prepare.py", "--model", self.job.model, "--out", disk / "m"), 2, READ_ONLY)


class Intruders(WrongInput):
    def test_a_second_coordinator_and_a_worker_of_another_version_are_refused_and_the_run_ends(self) -> None:
        run = self.copy_of(prepared.partial)
        with self.job.started("run", "--run", run) as first:
            held = self.job.wait_for_coordinator(run, first)
            recipe = (run / "run.toml").read_bytes()
            for command in (("run", "--run", run),
                            ("run", "--run", run, "--recipe", self.recipe(("local = 2", "local = 1"))),
                            ("clean", "--run", run, "--yes"),
                            ("check", "--run", run, "--repair")):
                with self.subTest(command):
                    self.assert_refused(self.job.command(*command), 2, f"pid {first.pid}", os.uname().nodename)
            self.assertEqual((run / "run.toml").read_bytes(), recipe)
            other = self.worker("serve", "--run", run, "--connect", held["endpoint"], "--worker", "old",
                                program="hedgerow-worker-of-another-version")
            self.assertEqual(other.code, 2, other)
            ours = self.worker("--version").out.split()[1]
            self.assertIn("version 0.0.1", other.err)
            self.assertIn(f"the coordinator {ours}; install the same version", other.err)
            self.assertIsNone(first.poll(), "the coordinator ended before it could be disturbed")
            out, err = first.communicate(timeout=120)
        self.assertEqual(first.returncode, 0, err)
        self.assertEqual(job.artifacts_of(run), prepared.artifacts)
        explained = self.job.command("explain", "--run", run)
        self.assertIn("refused worker old", " ".join(explained.out.split()))


if __name__ == "__main__":
    unittest.main()
