"""The teacher in C++ against transformers, logits in fp32.

Without a real model: tiny random models of every architecture variant (GQA, biases, q/k norms, tied embeddings, linear and
Llama 3.1 RoPE). With HEDGEROW_TEST_MODEL_FULL: that model over 2,048 tokens of real text, and its perplexity.
Exit code 77: skipped, with the reason.

Usage: teacher_parity_test.py <hedgerow-worker binary>
"""

import gzip
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
MAX_DIFFERENCE = 2e-3
MIN_MARGIN = 4e-3  # two logits closer than twice the difference may change places

try:
    import h5py
    import numpy
    import torch
    import transformers
    import xxhash
    from safetensors.torch import load_file
except (ImportError, OSError) as error:  # OSError: the wheel without CUDA's libraries
    print(f"skipped: {error}; deploy/setup --tests and --full-torch install what it needs")
    sys.exit(SKIPPED)


def variants():
    common = dict(hidden_size=64, intermediate_size=112, num_hidden_layers=3, num_attention_heads=4,
                  num_key_value_heads=2, vocab_size=211, max_position_embeddings=512, rms_norm_eps=1e-5,
                  bos_token_id=1, eos_token_id=2, pad_token_id=None)
    llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    yield "llama", transformers.LlamaConfig(**common, tie_word_embeddings=False)
    yield "llama tied", transformers.LlamaConfig(**common, tie_word_embeddings=True)
    yield "llama one kv head", transformers.LlamaConfig(**{**common, "num_key_value_heads": 1})
    yield "llama biases", transformers.LlamaConfig(**common, attention_bias=True, mlp_bias=True)
    yield "llama 3.1 rope", transformers.LlamaConfig(**common, rope_parameters=llama3)
    yield "llama linear rope", transformers.LlamaConfig(**common, rope_parameters=linear)
    yield "mistral", transformers.MistralConfig(**common, sliding_window=None)
    yield "qwen2", transformers.Qwen2Config(**common)
    yield "qwen3", transformers.Qwen3Config(**common, head_dim=32)
    yield "olmo2", transformers.Olmo2Config(**common)
    yield "olmo2 biases", transformers.Olmo2Config(**common, attention_bias=True)
    yield "smollm3", transformers.SmolLM3Config(**common, no_rope_layer_interval=2)


def randomized(model):
    """Biases and norms start at constants: a random value shows whether they are used."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
            else:
                parameter.mul_(4)
    return model


def write_tokens(path, ids, vocab_size):
    digest = xxhash.xxh3_128()
    mask = numpy.ones(ids.shape, numpy.uint8)
    starts = numpy.zeros(ids.shape, numpy.uint8)
    for array in (ids, mask, starts):
        digest.update(array.tobytes())
    with h5py.File(path, "w") as file:
        file["input_ids"], file["loss_mask"], file["document_starts"] = ids, mask, starts
        for key, value in {"hedgerow_format": "tokens/1", "num_train": 0, "vocab_size": vocab_size,
                           "tokenizer_hash": "", "sources": "[]", "content_hash": digest.hexdigest()}.items():
            file.attrs[key] = value


def ours(worker, model, ids, vocab_size, directory):
    tokens, logits = directory / "tokens.h5", directory / "logits.safetensors"
    write_tokens(tokens, ids, vocab_size)
    output = subprocess.run([worker, "evaluate", "--model", model, "--tokens", tokens, "--compute-dtype", "fp32",
                             "--logits", logits, "--json"], check=True, capture_output=True, text=True)
    return json.loads(output.stdout), load_file(logits)["logits"]


def compare(name, model, result, logits, ids):
    with torch.no_grad():
        expected = torch.cat([model(torch.from_numpy(row[None].astype("int64"))).logits for row in ids])
    difference = (logits - expected).abs().max().item()
    top = expected.topk(2, -1)
    clear = (top.values[..., 0] - top.values[..., 1]) > MIN_MARGIN
    same = (logits.argmax(-1) == top.indices[..., 0])[clear].all().item()
    loss = torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1),
                                             torch.from_numpy(ids[:, 1:].astype("int64")).flatten()).item()
    ratio = result["perplexity"] / math.exp(loss)
    print(f"{name}: largest difference {difference:.2e}, same argmax {same}, perplexity {result['perplexity']:.4f} / "
          f"{math.exp(loss):.4f}")
    good = difference <= MAX_DIFFERENCE and same and abs(ratio - 1) <= 1e-3
    if not good:
        print(f"FAILED {name}")
    return good


def main():
    worker = sys.argv[1]
    good = True
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        for title, config in variants():
            torch.manual_seed(1)
            model = randomized(transformers.AutoModelForCausalLM.from_config(config)).eval()
            target = directory / title.replace(" ", "_")
            model.save_pretrained(target)
            ids = numpy.random.default_rng(2).integers(0, config.vocab_size, (2, 150), dtype=numpy.int32)
            good &= compare(title, model, *ours(worker, target, ids, config.vocab_size, directory), ids)
        real = os.environ.get("HEDGEROW_TEST_MODEL_FULL")
        if not real:
            print("real model skipped: HEDGEROW_TEST_MODEL_FULL names no model directory")
        else:
            good &= real_model(worker, real, directory)
    return 0 if good else 1


def real_text():
    cache = pathlib.Path(os.environ.get("HEDGEROW_CACHE", pathlib.Path.home() / ".cache" / "hedgerow"))
    path = cache / "data" / "jargon.txt.gz"
    if not path.exists():
        return None
    with gzip.open(path, "rt", errors="replace") as text:
        return text.read()[100000:140000]


def real_model(worker, path, directory):
    from tokenizers import Tokenizer
    text = real_text()
    if text is None:
        print("real model skipped: the text is not in the cache (deploy/setup --tests)")
        return True
    ids = numpy.array(Tokenizer.from_file(f"{path}/tokenizer.json").encode(text, add_special_tokens=False).ids, numpy.int32)
    ids = ids[:2048].reshape(4, 512)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    return compare(path, model, *ours(worker, path, ids, model.config.vocab_size, directory), ids)


if __name__ == "__main__":
    sys.exit(main())
