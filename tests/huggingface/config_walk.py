"""Every attribute of the supported configurations, changed, against transformers: equal logits or a refusal that names it.

For each class the attributes of transformers' configuration and the keys that older files have are set, one at a time and
in the pairs where one goes before the other, to values that change what transformers computes, to null, and taken out. A
tiny random model is saved with its config.json so changed; where transformers loads it, `hedgerow-worker evaluate` gives
the same logits or ends with exit code 2 and the key in its message. Where transformers itself ends with an error, ours is
free to do either.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import json
import logging
import subprocess
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np

TOKENS = 96
LARGEST_DIFFERENCE = 2e-3  # teacher_parity_test's
ABSENT = object()

COMMON = dict(hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
              vocab_size=211, max_position_embeddings=512, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2)
LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
FULL, SLIDING = "full_attention", "sliding_attention"

# Attributes that say where a model comes from, or what its outputs are wrapped in.
NOT_COMPUTED_WITH = {"architectures", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "output_hidden_states",
                     "problem_type", "return_dict", "transformers_version"}

# Changes of config.json: what is said in one place, and in two that transformers weighs against each other.
CHANGES: list[dict[str, Any]] = [
    *({"rope_theta": theta} for theta in (1e4, 5e5, None)),
    *({"rms_norm_eps": eps} for eps in (1e-1, ABSENT)),
    *({"hidden_act": name} for name in ("gelu", "relu", "swish", "gelu_pytorch_tanh", ABSENT)),
    *({"tie_word_embeddings": tied} for tied in (True, False, ABSENT)),
    *({"attention_bias": bias} for bias in (True, False, ABSENT)),
    *({"mlp_bias": bias} for bias in (True, False, ABSENT)),
    *({"head_dim": dim} for dim in (16, 32, None, ABSENT)),
    *({"num_key_value_heads": heads} for heads in (1, 2, 4, None, ABSENT)),
    *({"partial_rotary_factor": factor} for factor in (0.5, 1.0)),
    *({"is_causal": causal} for causal in (False, True)),
    *({"num_hidden_layers": layers} for layers in (2, 3)),
    {"per_layer_config": {"1": {"sliding_window": 8}}}, {"attention_dropout": 0.5}, {"pretraining_tp": 2}, {"pad_token_id": 0},
    {"use_cache": False}, {"output_attentions": True}, {"chunk_size_feed_forward": 8}, {"is_decoder": True},
    {"attention_chunk_size": 16}, {"max_position_embeddings": 32}, {"original_max_position_embeddings": 32},
    {"logits_scaling": 2.0}, {"attn_implementation": "eager"}, {"dtype": "float32", "torch_dtype": "bfloat16"},
    # Sliding windows of each family's spelling.
    *({"sliding_window": window} for window in (16, None, ABSENT)),
    {"use_sliding_window": True}, {"use_sliding_window": True, "sliding_window": 16},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 3},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
    {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 28, "layer_types": [FULL, SLIDING, FULL]},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0, "layer_types": [FULL] * 3},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0, "layer_types": ["attention"] * 3},
    {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 0, "layer_types": None},
    {"use_sliding_window": True, "sliding_window": 512, "max_window_layers": 0},
    {"use_sliding_window": False, "sliding_window": 16, "layer_types": [SLIDING] * 3},
    {"layer_types": [FULL] * 3}, {"layer_types": [SLIDING] * 3}, {"layer_types": ["chunked_attention"] * 3},
    {"layer_types": ["linear_attention"] * 3}, {"layer_types": [FULL]}, {"sliding_window": 16, "layer_types": [FULL] * 3},
    # Layers without RoPE.
    {"no_rope_layers": [1, 0, 1]}, {"no_rope_layers": [0, 0, 0, 1]}, {"no_rope_layers": [1, 1]}, {"no_rope_layers": []},
    {"no_rope_layers": [True, False, True]}, {"no_rope_layers": [2, 1, 0]}, {"no_rope_layers": None, "no_rope_layer_interval": 3},
    *({"no_rope_layers": None, "no_rope_layer_interval": interval} for interval in (1, 0, None, ABSENT)),
    {"no_rope_layers": None, "no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 16, "layer_types": None},
    # RoPE in old and new spelling, and both.
    *({"rope_scaling": scaling} for scaling in (
        LINEAR, LLAMA3, {"type": "linear", "factor": 4.0}, {**LINEAR, "rope_theta": 3e5}, {"type": "default"}, {},
        {"rope_type": "yarn", "factor": 4.0}, {"type": "dynamic", "factor": 2.0}, {"type": "mrope"}, {"factor": 2.0},
        {"rope_type": "linear"}, {"rope_type": None, "type": "linear", "factor": 4.0},
        {"rope_type": "default", "type": "linear", "factor": 4.0}, {**LINEAR, "partial_rotary_factor": 0.5},
        {**LLAMA3, "original_max_position_embeddings": 32}, {k: v for k, v in LLAMA3.items() if "original" not in k},
        {**LLAMA3, "partial_rotary_factor": 0.5}, {**LLAMA3, "attention_factor": 2.0}, {**LINEAR, "attention_factor": 2.0},
        {"rope_type": "longrope", "factor": 4.0}, {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {"rope_type": "llama3", "factor": 8.0})),
    *({"rope_scaling": scaling, "rope_theta": 7e5} for scaling in (LINEAR, LLAMA3, {}, None, {**LINEAR, "rope_theta": 3e5})),
    *({"rope_parameters": rope, "rope_scaling": scaling, "rope_theta": theta}
      for rope in ({"rope_type": "default", "rope_theta": 2e5}, {**LINEAR, "rope_theta": 2e5}, {})
      for scaling in ({"type": "linear", "factor": 4.0}, LLAMA3, {"rope_type": "yarn", "factor": 4.0}, {"type": "default"}, {},
                      None)
      for theta in (ABSENT, 9e5)),
    {"rope_parameters": {"rope_type": "default", "rope_theta": 2e5, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {"rope_type": "default", "rope_theta": None}},
    {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}},
    {"rope_parameters": {FULL: {"rope_type": "default", "rope_theta": 2e5}}},
    {"rope_parameters": {FULL: {**LINEAR, "rope_theta": 2e5}}, "layer_types": [FULL] * 3},
    {"rope_parameters": None}, {"rope_parameters": ABSENT, "rope_theta": 4e5},
    {"rope_scaling": LLAMA3, "original_max_position_embeddings": 32},
    {"rope_parameters": {**LLAMA3, "rope_theta": 1e4}, "original_max_position_embeddings": 32},
]


ROPE_OF_ALL = [{"rope_theta": 5e5}, {"rope_scaling": LINEAR}, {"rope_scaling": LLAMA3},
               {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}]


def configurations() -> Iterator[tuple[str, Any]]:
    import transformers

    yield "llama", transformers.LlamaConfig(**COMMON)
    yield "mistral", transformers.MistralConfig(**COMMON, sliding_window=None)
    yield "qwen2", transformers.Qwen2Config(**COMMON)
    yield "qwen3", transformers.Qwen3Config(**COMMON, head_dim=32)
    yield "olmo2", transformers.Olmo2Config(**COMMON)
    yield "smollm3", transformers.SmolLM3Config(**COMMON, no_rope_layer_interval=2, pad_token_id=0)  # 128004 unless told


def attributes_of(config: Any) -> set[str]:
    """What transformers' class declares, less what every model has and none of these computes with."""
    import dataclasses

    return {field.name for field in dataclasses.fields(type(config))}


def keys_walked() -> set[str]:
    return {key for change in CHANGES for key in change} | set(COMMON)


def token_ids() -> np.ndarray:
    return np.random.default_rng(2).integers(0, COMMON["vocab_size"], (1, TOKENS), dtype=np.int32)


def theirs(directory: Path) -> Any:
    """transformers' logits [1, T, V] in fp32, or the error it ends with. A model with newly drawn weights is an error."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, output_loading_info=True, local_files_only=True)
            if report["missing_keys"] or report["mismatched_keys"]:
                return RuntimeError(f"missing {report['missing_keys']}, mismatched {report['mismatched_keys']}")
            with torch.no_grad():
                return model.eval()(torch.from_numpy(token_ids().astype("int64")), use_cache=False).logits
    except Exception as error:  # whatever it is: transformers does not compute this model
        return error


class ForkingWorker:
    """hedgerow-worker's command lines, one after the other, by tests/support/budget/forking_worker.cpp."""

    def __init__(self, program: Path, scratch: Path) -> None:
        self.out, self.err = scratch / "stdout", scratch / "stderr"
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, words: list[str]) -> subprocess.CompletedProcess:
        request = {"arguments": words, "stdout": str(self.out), "stderr": str(self.err)}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise AssertionError(f"{self.process.args[0]} ended with {self.process.wait()} at {words}")
        return subprocess.CompletedProcess(words, int(answer), self.out.read_text(), self.err.read_text())

    def close(self) -> None:
        self.process.communicate()  # the end of its stdin ends it


def started(worker: Path) -> Callable[[list[str]], subprocess.CompletedProcess]:
    """The program itself, a process a command line."""
    return lambda words: subprocess.run([worker, *words], capture_output=True, text=True)


def ours(worker: Callable[[list[str]], subprocess.CompletedProcess], directory: Path, tokens: Path) -> Any:
    """The worker's logits, or its refusal as (exit code, message)."""
    from safetensors.torch import load_file

    logits = directory.with_suffix(".logits")
    done = worker(["evaluate", "--model", str(directory), "--tokens", str(tokens), "--compute-dtype", "fp32", "--logits", str(logits),
                   "--json"])
    if done.returncode:
        return done.returncode, done.stderr.strip()
    found = load_file(logits)["logits"].clone()
    logits.unlink()
    return found


def shown(change: dict[str, Any]) -> str:
    return ", ".join(f"{key}={'absent' if value is ABSENT else json.dumps(value)}" for key, value in change.items())


def verdict(change: dict[str, Any], expected: Any, found: Any) -> str:
    """"" where they agree; else what is wrong."""
    if isinstance(found, tuple):
        code, message = found
        # A change of shapes is told by the tensor that no longer fits.
        names = [*change, "tensor", *(key for value in change.values() if isinstance(value, dict) for key in value)]
        if code == 2 and any(name in message for name in names):
            return ""
        if isinstance(expected, Exception) and code == 2:
            return ""
        return f"refused without naming it (exit {code}): {message}"
    if isinstance(expected, Exception):
        text = str(expected).splitlines()[0] if str(expected) else ""
        return f"computed, where transformers ends with {type(expected).__name__}: {text[:150]}"
    difference = (expected - found).abs().max().item()
    return "" if difference <= LARGEST_DIFFERENCE else f"computed otherwise: logits differ by {difference:.2g}"


def is_of_rope_alone(change: dict[str, Any]) -> bool:
    """RoPE is read by one function for all families, here and there; one of them walks all of its spellings."""
    return bool(change) and all(key.startswith(("rope_", "original_")) for key in change) and change not in ROPE_OF_ALL


def changed_model(base: Path, original: dict[str, Any], change: dict[str, Any], directory: Path) -> Path:
    directory.mkdir()
    (directory / "model.safetensors").symlink_to(base / "model.safetensors")
    keys = {key: value for key, value in {**original, **change}.items() if value is not ABSENT}
    (directory / "config.json").write_text(json.dumps(keys))
    return directory


def walk(program: Path, scratch: Path, make_model: Any, write_tokens: Any) -> list[str]:
    """The disagreements, one line each. The worker, which `program` forks, computes beside transformers."""
    problems = []
    write_tokens(scratch / "tokens.h5", token_ids(), COMMON["vocab_size"])
    changes = [{}, *CHANGES]
    with contextlib.closing(ForkingWorker(program, scratch)) as worker, concurrent.futures.ThreadPoolExecutor(1) as beside:
        for family, config in configurations():
            base = scratch / family
            make_model(config, base)
            original = json.loads((base / "config.json").read_text())
            own = [change for change in changes if family == "llama" or not is_of_rope_alone(change)]
            models = [changed_model(base, original, change, scratch / f"{family}-{i}") for i, change in enumerate(own)]
            for change, model, found in zip(own, models, beside.map(
                    lambda model: ours(worker, model, scratch / "tokens.h5"), models)):
                if problem := verdict(change, theirs(model), found):
                    problems.append(f"{family} with {shown(change) or 'nothing changed'}: {problem}")
    return problems
