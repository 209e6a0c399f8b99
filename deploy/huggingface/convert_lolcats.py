"""Converts the published LoLCATs checkpoints (.pt) to a student's files and back.

  convert_lolcats.py read --pt model.pt --model TEACHER_DIR --out DIR [--softmax-layers 7,15] [--alpha 16]
  convert_lolcats.py read --pt b0_-in=0-out=9_distill.pt --pt ... (blocks: layer names are local, the file name says where)
  convert_lolcats.py read --pt block.pt@9 ... (or say it with @FIRST_LAYER)
  convert_lolcats.py write --student DIR [--adapter DIR] --out model.pt [--layout flat|distill|block --first-layer 9
                           --num-layers 9]

`read` writes feature_maps.safetensors (fp32, LoLCATs' names) and, if the file holds LoRA, adapter/ in PEFT's format. Exactly
the expected tensors must be there: missing, surplus and misshaped ones are errors. Last line on stdout:
{"event":"done","layers":...,"softmax_layers":[...],"feature_map":{"projected_dim","bias"},"window_factors":...,"lora":...}.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common import UsageError, model_directory, read_json, read_safetensors_header, run_main, write_json, \
    write_safetensors
from torch_pickle import PickledTensor, load_tensors

MAPS = ("feature_map_q", "feature_map_k")
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj")
KEY = re.compile(r"(?:^|\.)layers\.(\d+)\.self_attn\.(.+)$")
LORA = re.compile(r"([qkvo]_proj)\.(lora_[AB])(?:\.default)?\.weight$")
BLOCK_NAME = re.compile(r"-in=(\d+)-out=(\d+)")


@dataclass(frozen=True)
class Geometry:
    """What config.json says about the projections."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int

    @staticmethod
    def of(directory: Path) -> Geometry:
        config = read_json(directory / "config.json")
        heads = config["num_attention_heads"]
        return Geometry(config["num_hidden_layers"], heads, config.get("num_key_value_heads") or heads,
                        config.get("head_dim") or config["hidden_size"] // heads, config["hidden_size"])

    def projection(self, module: str) -> tuple[int, int]:
        """(out, in)"""
        wide = self.heads * self.head_dim
        if module == "o_proj":
            return self.hidden, wide
        return (wide if module == "q_proj" else self.kv_heads * self.head_dim), self.hidden


@dataclass
class Found:
    """Tensors by (global layer, name after self_attn), and where each came from."""

    tensors: dict[tuple[int, str], PickledTensor] = field(default_factory=dict)
    origin: dict[tuple[int, str], str] = field(default_factory=dict)

    def add(self, layer: int, name: str, tensor: PickledTensor, where: str) -> None:
        if (layer, name) in self.tensors:
            raise UsageError(f"{where}: layer {layer} {name} is already in {self.origin[layer, name]}")
        self.tensors[layer, name], self.origin[layer, name] = tensor, where


def parse_block(argument: str) -> tuple[Path, int, int | None]:
    """FILE, FILE@FIRST or a LoLCATs block's file name: (path, first layer, number of layers if the name says it)."""
    path, _, first = argument.rpartition("@")
    if path and first.isdigit():
        return Path(path), int(first), None
    if match := BLOCK_NAME.search(Path(argument).name):
        return Path(argument), int(match[1]), int(match[2]) - int(match[1])
    return Path(argument), 0, None


def collect(arguments: list[str]) -> Found:
    """All tensors under one naming: the suffix from `layers.`, local layer numbers made global."""
    found = Found()
    for argument in arguments:
        path, first, expected = parse_block(argument)
        local_layers = set()
        for key, tensor in load_tensors(path).items():
            match = KEY.search(key)
            if not match:
                raise UsageError(f"{path}: surplus tensor '{key}' (not of a layer's attention)")
            local, name = int(match[1]), match[2]
            if lora := LORA.match(name):
                name = f"{lora[1]}.{lora[2]}"
            name = "window_factors" if name == "window_factor" else name
            local_layers.add(local)
            found.add(first + local, name, tensor, str(path))
        if expected is not None and local_layers != set(range(expected)):
            raise UsageError(f"{path}: a block of {expected} layers by its name, found layers {sorted(local_layers)}")
    return found


def check_shape(found: Found, layer: int, name: str, shapes: list[tuple[int, ...]]) -> PickledTensor:
    tensor = found.tensors.get((layer, name))
    if tensor is None:
        raise UsageError(f"layer {layer}: tensor {name} is missing; all layers must be there (kept softmax: "
                         "--softmax-layers)")
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(s)) for s in shapes)
        raise UsageError(f"{found.origin[layer, name]}: layer {layer} {name}: expected {wanted}, found {list(tensor.shape)}")
    return tensor


def fp32_bytes(values: np.ndarray) -> bytes:
    if not np.isfinite(values).all():
        raise UsageError("a tensor holds a value that is not finite; the checkpoint is damaged")
    return np.ascontiguousarray(values, dtype="<f4").tobytes()


def feature_maps(found: Found, geometry: Geometry, kept: set[int]) -> tuple[list, dict]:
    """(entries for write_safetensors, what the maps are). Takes what it uses out of `found`."""
    linear = [layer for layer in range(geometry.layers) if layer not in kept]
    names = {name for layer, name in found.tensors if layer not in kept}
    bias, factors = "feature_map_q.mlp.bias" in names, "window_factors" in names
    sizes = {t.shape[-1] for (_, name), t in found.tensors.items() if name.endswith(".mlp.layer") and len(t.shape) == 3}
    if len(sizes) != 1:
        raise UsageError(f"feature maps of {len(sizes)} different sizes {sorted(sizes)}; expected one for all layers")
    projected, heads = sizes.pop(), geometry.heads
    entries = []

    def take(layer: int, name: str, shapes: list[tuple[int, ...]], final: tuple[int, ...]) -> None:
        values = check_shape(found, layer, name, shapes).float32()
        if len(values.shape) != len(final):  # LoLCATs' bias is one number a head
            values = values.reshape(heads, 1)
        data = fp32_bytes(np.broadcast_to(values, final))
        entries.append((f"model.layers.{layer}.self_attn.{name}", "F32", final, lambda: data))
        del found.tensors[layer, name]

    for layer in linear:
        for name in MAPS:
            shape = (heads, geometry.head_dim, projected)
            take(layer, f"{name}.mlp.layer", [shape], shape)
            if bias:
                take(layer, f"{name}.mlp.bias", [(1, heads, 1, 1), (heads, projected)], (heads, projected))
        if factors:
            take(layer, "window_factors", [(1, heads, 1, 1)], (1, heads, 1, 1))
    return entries, {"projected_dim": projected, "bias": bias, "window_factors": factors}


def lora_entries(found: Found, geometry: Geometry) -> tuple[list, dict | None]:
    """(entries of adapter_model.safetensors, {"rank", "target_modules"}); None if the file holds no LoRA."""
    modules = [m for m in MODULES if any(name == f"{m}.lora_A" for _, name in found.tensors)]
    if not modules:
        return [], None
    ranks = {t.shape[0] for (_, name), t in found.tensors.items() if name.endswith("lora_A")}
    if len(ranks) != 1:
        raise UsageError(f"LoRA of different ranks {sorted(ranks)}; expected one")
    rank, entries = ranks.pop(), []
    for layer in range(geometry.layers):
        for module in modules:
            out, width = geometry.projection(module)
            for matrix, shape in (("lora_A", (rank, width)), ("lora_B", (out, rank))):
                data = fp32_bytes(check_shape(found, layer, f"{module}.{matrix}", [shape]).float32())
                name = f"base_model.model.model.layers.{layer}.self_attn.{module}.{matrix}.weight"
                entries.append((name, "F32", shape, lambda data=data: data))
                del found.tensors[layer, f"{module}.{matrix}"]
    return entries, {"rank": rank, "target_modules": modules}


def read(options: argparse.Namespace) -> dict:
    teacher = model_directory(options.model)
    geometry = Geometry.of(teacher)
    kept = {int(layer) for layer in options.softmax_layers.split(",") if layer}
    if kept and not kept <= set(range(geometry.layers)):
        raise UsageError(f"--softmax-layers {options.softmax_layers}: {teacher} has layers 0 to {geometry.layers - 1}")
    found = collect(options.pt)
    entries, facts = feature_maps(found, geometry, kept)
    lora, lora_facts = lora_entries(found, geometry)
    if found.tensors:
        layer, name = min(found.tensors)
        raise UsageError(f"{found.origin[layer, name]}: surplus tensor, layer {layer} {name} ({len(found.tensors)} in all); "
                         f"{teacher} has {geometry.layers} layers")
    options.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(options.out / "feature_maps.safetensors", entries)
    if lora_facts:
        # Every published LoLCATs configuration has alpha = 2 r.
        lora_facts["alpha"] = options.alpha if options.alpha is not None else 2.0 * lora_facts["rank"]
        adapter = options.out / "adapter"
        adapter.mkdir(exist_ok=True)
        write_safetensors(adapter / "adapter_model.safetensors", lora)
        write_json(adapter / "adapter_config.json", {
            "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": options.model,
            "r": lora_facts["rank"], "lora_alpha": lora_facts["alpha"], "lora_dropout": 0.0, "bias": "none",
            "target_modules": lora_facts["target_modules"], "inference_mode": True})
    return {"event": "done", "path": str(options.out), "layers": geometry.layers - len(kept), "softmax_layers": sorted(kept),
            "feature_map": facts, "lora": lora_facts}


def write(options: argparse.Namespace) -> dict:
    try:
        import torch
    except (ImportError, OSError) as error:
        raise ModuleNotFoundError(f"writing .pt needs PyTorch in Python: {error}", name="torch") from None
    widths = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
    state: dict[str, torch.Tensor] = {}
    files = [options.student / "feature_maps.safetensors"]
    if options.adapter:
        if (options.adapter / "trained_parameters.safetensors").exists():
            raise UsageError(f"{options.adapter}: its finetune trained more than LoRA (trained_parameters.safetensors), which a "
                             "LoLCATs checkpoint has no place for; 'hedgerow export' writes it")
        files.append(options.adapter / "adapter_model.safetensors")
    for file in files:
        if not file.is_file():
            raise UsageError(f"{file}: no such file")
        for name, stored in read_safetensors_header(file).items():
            match = KEY.search(name)
            if not match or stored.dtype not in widths:
                raise UsageError(f"{file}: tensor '{name}' ({stored.dtype}) has no place in a LoLCATs checkpoint")
            layer, rest = int(match[1]), match[2]
            if options.layout == "block":
                if not options.first_layer <= layer < options.first_layer + options.num_layers:
                    continue
                layer -= options.first_layer
            if lora := LORA.match(rest):
                rest = f"{lora[1]}.{lora[2]}.default.weight"
            tensor = torch.frombuffer(bytearray(stored.read()), dtype=widths[stored.dtype]).reshape(stored.shape)
            if rest.endswith("mlp.bias"):
                if not bool((tensor == tensor[:, :1]).all()):
                    raise UsageError(f"{file}: {name} has a bias for each feature; LoLCATs' format holds one number a head")
                tensor = tensor[:, 0].reshape(1, -1, 1, 1)
            prefix = "base_model.model.model." if options.layout == "flat" else "model."
            state[f"{prefix}layers.{layer}.self_attn.{rest}"] = tensor.to(widths[options.dtype]).clone()
    if not state:
        raise UsageError(f"{options.student}: no layer of {options.first_layer} to "
                         f"{options.first_layer + options.num_layers - 1} is there")
    torch.save(state if options.layout == "flat" else {"model_state_dict": state, "step": 0}, options.out)
    return {"event": "done", "path": str(options.out), "tensors": len(state), "layout": options.layout}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    reading = commands.add_parser("read")
    reading.add_argument("--pt", required=True, action="append")
    reading.add_argument("--model", required=True)
    reading.add_argument("--out", required=True, type=Path)
    reading.add_argument("--softmax-layers", default="")
    reading.add_argument("--alpha", type=float, help="LoRA's alpha; default 2 r, as in every published configuration")
    writing = commands.add_parser("write")
    writing.add_argument("--student", required=True, type=Path)
    writing.add_argument("--adapter", type=Path)
    writing.add_argument("--out", required=True, type=Path)
    writing.add_argument("--layout", choices=("flat", "distill", "block"), default="flat")
    writing.add_argument("--first-layer", type=int, default=0)
    writing.add_argument("--num-layers", type=int, default=1 << 30)
    writing.add_argument("--dtype", choices=("BF16", "F16", "F32"), default="BF16")
    options = parser.parse_args()
    print(json.dumps(read(options) if options.command == "read" else write(options)))
    return 0


if __name__ == "__main__":
    run_main(main)
