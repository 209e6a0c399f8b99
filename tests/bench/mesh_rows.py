"""LoRA over a mesh of ranks on SmolLM2-135M: equal bytes in every mesh, how fast two stages and two pipelines are beside one
rank, what stages send and how long they wait beside the formula's, and a model that is four times a rank's memory."""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench_common import Context, Row, require_packages

MICRO_BATCHES = 8
STEPS = 5  # the first one is not counted: it fills caches
SEQ_LEN = 512
SHAPES = ("1x2", "2x1", "1x3", "3x1", "1x4", "2x2", "4x1", "1x2x2")

RECIPE = """seed = 0
[model]
path = "{model}"
[data.transfer]
seq_len = {seq_len}
validation_sequences = 4
max_sequences = 16
sources = [{{ path = "{text}", format = "text" }}]
[data.finetune]
max_sequences = 80
sources = [{{ path = "{text}", format = "text" }}]
[data.evaluate]
validation_sequences = 2
sources = [{{ path = "{text}", format = "text" }}]
[attention]
feature_dim = 128
[plan]
layers_per_block = {k}
compute_dtype = "bf16"
sequences_per_forward = 1
[transfer]
max_steps = 0
[finetune]
max_steps = {steps}
sequences_per_step = {micro_batches}
validate_every = 0
trainable = ["lora", "maps"]
ranks = {ranks}
threads = 1
[workers]
local = 1
threads = 2
"""


@dataclass
class Finetuned:
    adapter: bytes
    seconds: list[float]  # of each step but the first
    idle: list[float]
    bytes_between_stages: int


class Stage:
    """A run up to its LoRA stage, which is then computed over one mesh after another."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.run = context.work / "mesh"
        shutil.rmtree(self.run, ignore_errors=True)
        recipe = context.work / "mesh.toml"
        recipe.write_text(RECIPE.format(model=context.model(), text=context.cache / "data" / "jargon.txt.gz", seq_len=SEQ_LEN, k=30,
                                        steps=STEPS, micro_batches=MICRO_BATCHES, ranks=1))
        subprocess.run([context.program("hedgerow"), "run", "--run", self.run, "--recipe", recipe, "--stop-before", "finetune",
                        "--web", "none", "-q"], check=True, capture_output=True)
        self.student = next((self.run / "student").iterdir()).name
        self.token = 1000

    def over(self, mesh: str) -> Finetuned:
        """Ranks have a core each where there are as many."""
        self.token += 1
        sizes = [int(size) for size in mesh.split("x")]
        ranks = sizes[0] * sizes[1]
        binding = ["--bind-to", "core"] if ranks <= len(os.sched_getaffinity(0)) else ["--bind-to", "none", "--oversubscribe"]
        subprocess.run(["mpirun", "--allow-run-as-root", *binding, "-n", str(ranks), self.context.program("hedgerow-worker"), "finetune",
                        "--run", self.run, "--student", f"student/{self.student}", "--token", str(self.token), "--mesh", mesh,
                        "--threads", "1"], check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        lines = [json.loads(line) for line in (self.run / f"attempts/t{self.token}/metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if "loss" in line][1:]
        return Finetuned((self.run / f"adapter/t{self.token}/adapter_model.safetensors").read_bytes(),
                         [step["seconds"] for step in steps], [step.get("idle_seconds", 0.0) for step in steps],
                         steps[0].get("bytes_between_stages", 0))


def mesh(context: Context) -> Iterator[Row]:
    stage = Stage(context)
    alone = stage.over("1x1")
    seconds: dict[str, list[float]] = {"1x1": [], "1x2": [], "2x1": []}
    idle: list[float] = []
    for _ in range(context.repeats):
        for shape in seconds:
            found = stage.over(shape)
            seconds[shape] += found.seconds
            if shape == "1x2":
                idle += [waited / step for waited, step in zip(found.idle, found.seconds)]
                sent = found.bytes_between_stages
    median = {shape: statistics.median(values) for shape, values in seconds.items()}
    pipeline_goal = 0.9 * 2 * MICRO_BATCHES / (MICRO_BATCHES + 1)
    yield Row(f"LoRA, 1 x 2: steps of {MICRO_BATCHES} micro-batches, times as fast as one rank", median["1x1"] / median["1x2"], "x",
              f">= {pipeline_goal:.3f}")
    yield Row("LoRA, 2 x 1: times as fast as one rank", median["1x1"] / median["2x1"], "x", ">= 1.7")
    # The residual stream, 576 wide, goes forward and its gradient backward, both in bf16.
    yield Row("LoRA, 1 x 2: bytes between stages over the formula's", sent / (MICRO_BATCHES * SEQ_LEN * 576 * 2 * 2), "x", "== 1")
    bubble = 1 / (MICRO_BATCHES + 1)
    yield Row(f"LoRA, 1 x 2: share of a step in which a stage waits, how far from the formula's {bubble:.3f}",
              abs(statistics.median(idle) - bubble), "", "<= 0.05")
    different = [shape for shape in SHAPES if stage.over(shape).adapter != alone.adapter]
    yield Row(f"LoRA: meshes of {', '.join(SHAPES)} whose adapter has other bytes than one rank's", len(different), "", "== 0")


# 40 layers of Llama-3.2-1B, which has 16; 5.3 GB.
LARGE = {"num_hidden_layers": 40, "hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
         "head_dim": 64, "vocab_size": 49152}
LARGE_RANKS = 16
MEMORY_LIMIT = 1_300_000_000


def write_large_model(folder: Path, tokenizer: Path) -> int:
    """Random weights; how many bytes they are."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", **LARGE, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 1,
        "eos_token_id": 2}))
    generator = torch.Generator().manual_seed(0)
    hidden, wide = LARGE["hidden_size"], LARGE["intermediate_size"]
    kv = LARGE["num_key_value_heads"] * LARGE["head_dim"]

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(0.0, 0.02, generator=generator)

    weight_map: dict[str, str] = {}
    for index in range(-1, LARGE["num_hidden_layers"]):
        prefix = f"model.layers.{index}."
        tensors = {"model.embed_tokens.weight": drawn(LARGE["vocab_size"], hidden), "lm_head.weight": drawn(LARGE["vocab_size"], hidden),
                   "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16)} if index < 0 else {
            prefix + "self_attn.q_proj.weight": drawn(hidden, hidden), prefix + "self_attn.k_proj.weight": drawn(kv, hidden),
            prefix + "self_attn.v_proj.weight": drawn(kv, hidden), prefix + "self_attn.o_proj.weight": drawn(hidden, hidden),
            prefix + "mlp.gate_proj.weight": drawn(wide, hidden), prefix + "mlp.up_proj.weight": drawn(wide, hidden),
            prefix + "mlp.down_proj.weight": drawn(hidden, wide), prefix + "input_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden, dtype=torch.bfloat16)}
        name = f"part-{index + 1:03d}.safetensors"
        save_file(tensors, folder / name)
        weight_map |= {key: name for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def larger_than_a_rank(context: Context) -> Iterator[Row]:
    """Every process of the run has the limit, so none can hold more than a quarter of the weights."""
    require_packages("torch", "safetensors")
    model, run, recipe = context.work / "large-model", context.work / "large", context.work / "large.toml"
    shutil.rmtree(run, ignore_errors=True)
    size = write_large_model(model, context.model())
    recipe.write_text(RECIPE.format(model=model, text=context.cache / "data" / "jargon.txt.gz", seq_len=192, k=1, steps=2, micro_batches=4,
                                    ranks=LARGE_RANKS) + '[evaluate]\nprompts = ["A hacker is"]\nmax_new_tokens = 4\n')
    hedgerow = context.program("hedgerow")

    def limited(*words: str | Path) -> subprocess.CompletedProcess:
        return subprocess.run([hedgerow, *words], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT)))

    for what, words in (("trained and evaluated", ("run", "--run", run, "--recipe", recipe, "--web", "none", "-q")),
                        ("generated from", ("generate", "--run", run, "--ranks", str(LARGE_RANKS), "--max-new-tokens", "4", "A hacker is"))):
        done = limited(*words)
        if done.returncode:
            print(done.stdout[-2000:] + done.stderr[-2000:], flush=True)
        yield Row(f"a model of {size / 1e9:.1f} GB, over a process's limit of {MEMORY_LIMIT / 1e9:.2f} GB, {what} on {LARGE_RANKS} ranks",
                  size / MEMORY_LIMIT if done.returncode == 0 else None, "x", ">= 4")
    shutil.rmtree(model)
