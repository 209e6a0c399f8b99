"""What people's own files did to hedgerow, the real programs against transformers and PEFT: equal to them, or exit code 2
with the file, the key or the record in the message.

Holds small inputs of each kind itself. Folders of ../shared/cases (public reports, a folder each) are tried too where they
exist; elsewhere that test says that it was skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import unittest
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "worker"))
import support  # noqa: E402

support.require("torch", "transformers", "peft", "h5py", "safetensors", "tokenizers")

import h5py  # noqa: E402
import numpy as np  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import config_walk  # noqa: E402
import stranger_models as models  # noqa: E402
from teacher_parity_test import write_tokens  # noqa: E402

transformers.logging.set_verbosity_error()

BIN = Path(os.environ["HEDGEROW_BIN"])
CASES = support.REPOSITORY.parent / "shared" / "cases"
SEQ_LEN = 32
RECIPE = """
[model]
path = "{model}"
[data.transfer]
seq_len = {seq_len}
validation_sequences = 1
add_bos = {add_bos}
sources = [{{ {source} }}]
[attention]
window_size = 8
[transfer]
validation_sequences = 1
"""
NEW_TOKENS = 8
# Data that is wrong, or says too little: half a character, a null or a number for text, columns, a call without a name, a
# file that is no zstd.
REFUSED_DATA = {"alpaca_number", "json_columns", "jsonl_null_text", "lone_surrogate", "lone_surrogate_alpaca",
                "sharegpt_function", "zst"}
CHATS = {"chatml", "content_parts", "generation_tag", "qwen3_think_all", "tools_not_none"}
TIE = 0.1  # of the logits' standard deviation: where two are as good as equal, rounding to bf16 decides


def hedgerow(*words: object, env: dict[str, str] | None = None, cwd: Path | None = None) -> subprocess.CompletedProcess:
    own = {**os.environ, "HEDGEROW_PYTHON": sys.executable}
    return subprocess.run([BIN / "hedgerow", *map(str, words)], capture_output=True, text=True, encoding="utf-8", cwd=cwd,
                          env={**own, **(env or {})}, timeout=300)


def answers(done: subprocess.CompletedProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


class Strangers(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.shared = Path(folder.name)
        cls.plain = models.write_model(cls.shared / "plain")

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)

    def ok(self, done: subprocess.CompletedProcess) -> subprocess.CompletedProcess:
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return done

    def refused(self, done: subprocess.CompletedProcess, *words: str) -> None:
        self.assertEqual(done.returncode, 2, done.stdout[-1000:] + done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)
        self.assertNotIn("Traceback", done.stderr)

    def copy_of(self, model: Path, name: str = "model") -> Path:
        copy = self.root / name
        shutil.copytree(model, copy)
        return copy

    def init(self, model: Path, data: Path, *more: object, **options: Any) -> subprocess.CompletedProcess:
        (self.root / "recipe.toml").unlink(missing_ok=True)
        return hedgerow("init", model, "--data", data, "--out", self.root / "recipe.toml", *more, **options)

    def rows(self, model: Path | str, data: Path, *more: object, add_bos: str = "", **where: Any) -> np.ndarray:
        """The training sequences of `data`, as `hedgerow init` names it and `hedgerow tokenize` reads it."""
        self.ok(self.init(model, data, *more, **where))
        return self.tokenized(model, add_bos, **where)

    def tokenized(self, model: Path | str, add_bos: str = "", **where: Any) -> np.ndarray:
        """The same where `hedgerow init` has written its recipe."""
        recipe = self.root / "recipe.toml"
        section = tomllib.loads(recipe.read_text())["data"]["transfer"]
        bos = add_bos or ('"auto"' if section["add_bos"] == "auto" else str(section["add_bos"]).lower())
        source = ", ".join(f"{key} = {json.dumps(value)}" for key, value in section["sources"][0].items())
        recipe.write_text(RECIPE.format(model=model, seq_len=SEQ_LEN, add_bos=bos, source=source))
        out = self.root / "tokens.h5"
        out.unlink(missing_ok=True)
        self.ok(hedgerow("tokenize", "--recipe", recipe, "--stage", "transfer", "--out", out, **where))
        with h5py.File(out) as file:
            return file["input_ids"][:int(file.attrs["num_train"])]

    def records(self, name: str, records: list[dict]) -> Path:
        path = self.root / name
        path.write_text("\n".join(json.dumps(record) for record in records))
        return path

    # --- what texts begin with

    def begins_as_transformers(self, model: Path) -> None:
        """Documents, a prompt and a chat of `model`, against AutoTokenizer and transformers' own generation."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        texts = [f"text {i} was seen over the years by the old hacker" for i in range(12)]
        end = transformers.AutoConfig.from_pretrained(model).eos_token_id
        expected = [token for text in texts for token in [*tokenizer(text).input_ids, end]]
        found = self.rows(model, self.records("texts.jsonl", [{"text": text} for text in texts]))
        self.assertEqual(found.ravel().tolist(), expected[:found.size])
        chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": "A daemon is"}] for text in texts]
        expected = [token for chat in chats for token in tokenizer.apply_chat_template(chat, return_dict=False)]
        found = self.rows(model, self.records("chats.jsonl", [{"messages": chat} for chat in chats]))
        self.assertEqual(found.ravel().tolist(), expected[:found.size])
        body = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        prompt = "over the"
        for more, ids in ((), tokenizer(prompt).input_ids), (("--chat",), tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False)):
            answer = answers(self.ok(hedgerow("generate", "--model", model, "--max-new-tokens", NEW_TOKENS, "--json", *more,
                                              prompt)))[-1]
            body = body.to(torch.bfloat16 if answer["compute_dtype"] == "bf16" else torch.float32)
            new = answer["ids"]
            with torch.no_grad():
                logits = body(torch.tensor([ids + new])).logits[0, len(ids) - 1:-1].float()
            behind = logits.max(-1).values - logits.gather(1, torch.tensor(new)[:, None])[:, 0]
            self.assertLess(float(behind.max()), TIE * float(logits.std()), (ids, new))
            whole, before = (tokenizer.decode(i, skip_special_tokens=True) for i in (ids + new, ids))
            self.assertEqual(answer["text"], whole[len(before):])

    def test_documents_prompts_and_chats_begin_as_transformers_begins_them(self) -> None:
        llama3 = models.write_model(self.root / "llama3", tokenizer=models.byte_level("<s>"))
        self.begins_as_transformers(llama3)
        self.begins_as_transformers(self.plain)

    def test_decoders_that_drop_the_first_space_show_what_decode_of_all_ids_shows(self) -> None:
        self.begins_as_transformers(models.write_model(self.root / "llama2", tokenizer=models.sentence_piece()))

    def test_the_id_of_bos_is_the_tokenizers_and_the_recipe_can_override_it(self) -> None:
        model = models.write_model(  # DeepSeek-R1-Distill-Qwen's layout: config.json's BOS is the end token
            self.root / "deepseek", transformers.Qwen2Config(**{**models.CONFIG, "bos_token_id": 1, "eos_token_id": 1}),
            models.byte_level("<bosR1>"), bos_token="<bosR1>", eos_token="<|eot|>", add_bos_token=True)
        self.begins_as_transformers(model)
        data = self.records("texts.jsonl", [{"text": f"a text of number {i} over the years"} for i in range(20)])
        self.assertEqual(self.rows(model, data)[0, 0], 4)
        self.assertNotIn(4, self.rows(model, data, add_bos="false"))
        self.assertEqual(self.rows(self.plain, data, add_bos="true")[0, 0], 0)

    # --- chat templates

    def test_chat_templates_render_as_transformers_renders_them(self) -> None:
        messages = [{"role": "user", "content": "what is it?"}, {"role": "assistant", "content": "a daemon"},
                    {"role": "user", "content": "and then?"}, {"role": "assistant", "content": "over the years"}]
        data = self.records("chats.jsonl", [{"messages": messages}] * 20)
        begin = "{% for m in messages %}"
        templates = {
            "tools": "{%- if tools is not none %}{{ 'Tools: ' ~ tools }}{%- endif %}" + models.CHATML,
            "documents": "{%- if documents is none %}none {%- endif %}" + models.CHATML,
            "generation": begin + "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
                                  "{% else %}{{ m.content }}{% endif %}{% endfor %}",
            "loop controls": begin + "{% if loop.index > 2 %}{% break %}{% endif %}{{ m.content + eos_token }}{% endfor %}",
            "think": begin + "{% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
                             "{{ m.content }}{% endfor %}",
        }
        for name, template in templates.items():
            with self.subTest(name):
                model = self.copy_of(self.plain, name)
                (model / "tokenizer_config.json").write_text(json.dumps(models.settings(chat_template=template)))
                tokenizer = transformers.AutoTokenizer.from_pretrained(model)
                expected = tokenizer.apply_chat_template(messages, return_dict=False) * 20
                found = self.rows(model, data)
                self.assertGreater(found.size, 0)
                self.assertEqual(found.ravel().tolist(), expected[:found.size])

    def test_a_template_that_fails_is_one_error_with_file_record_and_its_own_message(self) -> None:
        model = self.copy_of(self.plain)
        (model / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
        data = self.records("chats.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
        self.refused(self.init(model, data), "chats.jsonl:1", "roles must alternate")

    # --- config.json and weights

    def test_each_key_of_a_configuration_is_read_as_transformers_reads_it_or_refused_by_name(self) -> None:
        for _, config in config_walk.configurations():
            missing = config_walk.attributes_of(config) - config_walk.keys_walked() - config_walk.NOT_COMPUTED_WITH
            self.assertFalse(missing, "attributes of transformers' class that nothing here changes")
        problems = config_walk.walk(BIN / "hedgerow-worker-forking", self.root,
                                    lambda config, out: models.random_model(config).save_pretrained(out), write_tokens)
        self.assertFalse(problems, "\n".join(problems))

    def parity(self, model: Path) -> str:
        tokens = self.root / "tokens.h5"
        vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
        write_tokens(tokens, config_walk.token_ids(), vocab_size)
        found = config_walk.ours(config_walk.started(BIN / "hedgerow-worker"), model, tokens)
        return config_walk.verdict({}, config_walk.theirs(model), found) if not isinstance(found, tuple) else str(found)

    def rewritten(self, change: Any, config: dict | None = None) -> Path:
        """The plain model with change(tensors) as its weights."""
        model = self.copy_of(self.plain)
        tensors = change(load_file(model / "model.safetensors"))
        save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
        if config:
            keys = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps({**keys, **config}))
        return model

    def test_surplus_tensors_of_any_type_are_ignored_and_a_wanted_one_is_not(self) -> None:
        surplus = {"rotary.inv_freq": torch.ones(3), "k_scale": torch.ones(2).to(torch.float8_e4m3fn),
                   "complex": torch.ones(2, dtype=torch.complex64), "counts": torch.ones(2, dtype=torch.uint16),
                   "e8m0": torch.ones(2).to(torch.float8_e8m0fnu), "empty": torch.ones(0)}
        self.assertEqual(self.parity(self.rewritten(lambda t: {**t, **surplus})), "")
        shutil.rmtree(self.root / "model")
        name = "model.layers.1.mlp.up_proj.weight"
        found = self.parity(self.rewritten(lambda t: {**t, name: t[name].to(torch.float8_e4m3fn)}))
        for word in ("(2, ", name, "F8_E4M3"):
            self.assertIn(word, found)

    def test_a_head_of_its_own_beside_tied_embeddings_counts(self) -> None:
        self.assertEqual(self.parity(self.rewritten(lambda t: t, {"tie_word_embeddings": True})), "")

    def test_a_uniform_prefix_is_named_with_the_rename_that_helps(self) -> None:
        for old, new, words in (("", "_orig_mod.", "take '_orig_mod.' off"), ("model.", "", "put 'model.' before"),
                                ("model.", "model.language_model.", "write 'model.' for 'model.language_model.'")):
            shutil.rmtree(self.root / "model", ignore_errors=True)
            model = self.rewritten(lambda t: {new + k[len(old):] if k.startswith(old) else k: v for k, v in t.items()})
            found = self.parity(model)
            self.assertIn("(2, ", found)
            self.assertIn(words, found)

    def test_plan_and_init_need_the_configuration_alone(self) -> None:
        (self.root / "config").mkdir()
        transformers.LlamaConfig(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64,
                                 num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
                                 architectures=["LlamaForCausalLM"]).save_pretrained(self.root / "config")
        recipe = support.REPOSITORY / "deploy" / "recipes" / "llama3_70b.toml"
        done = self.ok(hedgerow("plan", "--recipe", recipe, "--model", self.root / "config"))
        self.assertIn("the weights were not seen", done.stdout)
        data = self.records("text.jsonl", [{"text": "a"}])
        done = self.ok(self.init(self.root / "config", data))
        self.assertIn("the weights were not seen", done.stdout + done.stderr)

    # --- adapters

    def merged(self, adapter: Path, model: Path) -> subprocess.CompletedProcess:
        out = self.root / f"merged-{adapter.name}"
        return subprocess.run([BIN / "hedgerow-worker", "merge", "--model", model, "--adapter", adapter, "--out", out,
                               "--compute-dtype", "fp32"], capture_output=True, text=True)

    def adapter(self, name: str, **config: Any) -> tuple[Path, dict[str, torch.Tensor]]:
        """An adapter that PEFT saved, and the weights that it merges them to."""
        base = transformers.AutoModelForCausalLM.from_pretrained(self.plain, dtype=torch.float32)
        torch.manual_seed(3)
        model = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, task_type="CAUSAL_LM", init_lora_weights=False,
                                                          **config))
        model.save_pretrained(self.root / name)
        return self.root / name, model.merge_and_unload().state_dict()

    def test_targets_of_peft_in_any_spelling_are_merged_as_peft_merges_them(self) -> None:
        spellings = {"suffixes": ["q_proj", "self_attn.v_proj", "mlp.down_proj"], "all_linear": "all-linear",
                     "regex": r".*\.layers\.\d+\.self_attn\.(q_proj|v_proj)", "one layer": r"model\.layers\.1\..*_proj",
                     "full names": ["model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj"]}
        for name, targets in spellings.items():
            with self.subTest(name):
                adapter, expected = self.adapter(name, target_modules=targets)
                done = self.merged(adapter, self.plain)
                self.assertEqual(done.returncode, 0, done.stderr)
                for tensor, value in load_file(self.root / f"merged-{name}" / "model.safetensors").items():
                    self.assertTrue(torch.allclose(value.float(), expected[tensor], atol=1e-5), tensor)

    def test_what_peft_computes_and_we_do_not_is_refused_by_its_name(self) -> None:
        for name, config, word in (("head", {"target_modules": ["q_proj", "lm_head"]}, "lm_head"),
                                   ("head by regex", {"target_modules": ".*(v_proj|lm_head)"}, "lm_head"),
                                   ("dora", {"target_modules": ["q_proj"], "use_dora": True}, "use_dora"),
                                   ("some layers", {"target_modules": ["q_proj"], "layers_to_transform": [0]},
                                    "layers_to_transform"),
                                   ("excluded", {"target_modules": ["q_proj", "v_proj"],
                                                 "exclude_modules": ["model.layers.0.self_attn.v_proj"]}, "exclude_modules"),
                                   ("ranks", {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 2}},
                                    "rank_pattern"),
                                   ("embeddings", {"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens")):
            with self.subTest(name):
                done = self.merged(self.adapter(name, **config)[0], self.plain)
                self.assertEqual(done.returncode, 2, done.stderr)
                self.assertIn(word, done.stderr)
                self.assertNotIn("another model", done.stderr)

    # --- environments

    def test_the_hugging_face_cache_is_found_in_one_way(self) -> None:
        data = self.records("texts.jsonl", [{"text": f"a text of number {i} over the years"} for i in range(20)])
        for variable, hub in (("XDG_CACHE_HOME", "huggingface/hub"), ("HF_HOME", "hub"), ("HF_HUB_CACHE", ""),
                              ("HUGGINGFACE_HUB_CACHE", "")):
            with self.subTest(variable):
                cache = self.root / variable
                repository = cache / hub / "models--acme--tiny"
                shutil.copytree(self.plain, repository / "snapshots" / "abc")
                (repository / "refs").mkdir()
                (repository / "refs" / "main").write_text("abc")
                env = {name: "" for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")}
                env[variable] = str(cache)
                self.assertGreater(self.rows("acme/tiny", data, env=env, cwd=self.root).size, 0)
                done = hedgerow("generate", "--model", "acme/tiny", "--max-new-tokens", 2, "over the", env=env, cwd=self.root)
                self.ok(done)

    def test_our_python_is_started_apart_from_the_shells(self) -> None:
        (self.root / "numpy.py").write_text("raise ImportError('another numpy')")
        (self.root / "other").mkdir()
        (self.root / "numpy.py").rename(self.root / "other" / "numpy.py")
        model = self.copy_of(self.plain)
        template = "{% for m in messages %}\u00ab{{ m.role }}\u00bb {{ m.content }}{% endfor %}\u00ab\u2026"
        (model / "chat_template.jinja").write_text(template, encoding="utf-8")
        for env in ({"PYTHONSAFEPATH": "1"}, {"PYTHONHOME": "/usr"}, {"PYTHONPATH": str(self.root / "other")},
                    {"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}):
            with self.subTest(env):
                self.ok(hedgerow("generate", "--model", model, "--chat", "--max-new-tokens", 2, "\u00fcber", env=env))
                done = hedgerow("doctor", "--json", env=env, cwd=self.root)
                python = [check for line in answers(done) for check in line.get("checks", [line])
                          if check.get("check") == "Python packages"]
                self.assertTrue(python and all(check["level"] == "ok" for check in python), done.stdout)

    def test_variables_of_another_job_do_not_reach_the_ranks_of_a_local_run(self) -> None:
        stale = {"SLURM_JOB_ID": "77", "SLURM_JOBID": "77", "SLURM_NODELIST": "othernode", "SLURM_JOB_NODELIST": "othernode",
                 "SLURM_NNODES": "1", "SLURM_JOB_NUM_NODES": "1", "SLURM_TASKS_PER_NODE": "1", "PBS_JOBID": "5.other",
                 "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_NODEFILE": "/nonexistent/nodes", "OMPI_COMM_WORLD_RANK": "3",
                 "OMPI_COMM_WORLD_SIZE": "9", "PMIX_RANK": "3", "PMIX_NAMESPACE": "old"}
        self.ok(hedgerow("generate", "--model", self.plain, "--ranks", 2, "--max-new-tokens", 2, "over the", env=stale))

    # --- the reports

    def test_the_reported_cases(self) -> None:
        if not CASES.is_dir():
            self.skipTest(f"{CASES} is not there: the public reports were not tried")
        skipped = []
        for case in sorted(path for path in CASES.iterdir() if path.is_dir()):
            with self.subTest(case.name):
                shutil.rmtree(self.root, ignore_errors=True)
                self.root.mkdir()
                if not self.try_case(case):
                    skipped.append(case.name)
        print("skipped, told by the tests above:", " ".join(skipped))

    def try_case(self, case: Path) -> bool:
        """False: the folder has no input that can be tried as it stands."""
        if case.name.startswith("config_"):
            recipe = support.REPOSITORY / "deploy" / "recipes" / "llama3_70b.toml"
            done = hedgerow("plan", "--recipe", recipe, "--model", case, "--workers", 0)
            if case.name == "config_Qwen3-30B-A3B":  # a mixture of experts
                self.refused(done, "config.json", "Qwen3MoeForCausalLM")
            else:
                self.ok(done)
        elif case.name.startswith("peft_") and (case / "adapter_config.json").exists():
            done = self.merged(case, self.plain)
            self.assertEqual(done.returncode, 0, done.stderr)
            base = transformers.AutoModelForCausalLM.from_pretrained(self.plain, dtype=torch.float32)
            expected = peft.PeftModel.from_pretrained(base, case).merge_and_unload().state_dict()
            for name, value in load_file(self.root / f"merged-{case.name}" / "model.safetensors").items():
                self.assertTrue(torch.allclose(value.float(), expected[name], atol=1e-5), name)
        elif data := next((path for path in sorted(case.iterdir()) if path.name.startswith("data.")), None):
            model = self.model_of(case)
            done = self.init(model, data)
            if case.name in REFUSED_DATA:
                self.refused(done, data.name)
            else:
                self.ok(done)
                rows = self.tokenized(model)
                self.assertGreater(rows.size, 0)
                if case.name in CHATS:
                    self.compare_chats(model, data, rows)
        elif (case / "config.json").exists():
            model = self.model_of(case)
            tokens = self.root / "tokens.h5"
            write_tokens(tokens, config_walk.token_ids(), models.CONFIG["vocab_size"])
            keys = json.loads((case / "config.json").read_text())
            problem = config_walk.verdict(keys, config_walk.theirs(model),
                                          config_walk.ours(config_walk.started(BIN / "hedgerow-worker"), model, tokens))
            self.assertEqual(problem, "")
        else:
            return False
        return True

    def compare_chats(self, model: Path, data: Path, found: np.ndarray) -> None:
        """The tokens of records with `messages` are those of apply_chat_template, one record after another."""
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        expected = [token for record in map(json.loads, data.read_text().splitlines())
                    for token in tokenizer.apply_chat_template(record["messages"], return_dict=False)]
        self.assertEqual(found.ravel().tolist(), expected[:found.size])

    def model_of(self, case: Path) -> Path:
        """The plain model's weights as the case's configuration asks for them, and its tokenizer files."""
        model = self.root / "case"
        if (case / "config.json").exists():
            keys = json.loads((case / "config.json").read_text())
            kind = {"llama": transformers.LlamaConfig, "qwen2": transformers.Qwen2Config,
                    "qwen3": transformers.Qwen3Config}[keys["model_type"]]
            models.write_model(model, kind(**{**models.CONFIG, "vocab_size": keys["vocab_size"]}))
        else:
            shutil.copytree(self.plain, model)
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "chat_template.jinja"):
            if (case / name).exists():
                shutil.copy(case / name, model)
        return model


if __name__ == "__main__":
    unittest.main()
