"""Shared by the Python tests: paths, a tiny export directory, skips with a reason."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import runpy
import shutil
import sys
import unittest
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
HUGGINGFACE = REPOSITORY / "deploy" / "huggingface"
SEED = 1234  # printed by failing assertions that depend on it

TINY = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def require(*packages: str) -> None:
    """Skips the calling test module if a package is not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise unittest.SkipTest(f"Python package {missing[0]} is not installed (deploy/setup --tests installs it)")
    if "torch" in packages:
        try:
            importlib.import_module("torch")
        except (ImportError, OSError) as error:  # the wheel without CUDA's libraries
            raise unittest.SkipTest(f"Python cannot import torch here ({str(error).splitlines()[0]}); "
                                    "deploy/setup --full-torch completes it") from None


def operators_library() -> Path:
    """libhedgerow_ops.so of this build."""
    folder = Path(os.environ.get("HEDGEROW_BIN", REPOSITORY / "build" / "cpu" / "bin"))
    library = folder / "libhedgerow_ops.so"
    if not library.exists():
        raise unittest.SkipTest(f"{library} is not built (target hedgerow_ops; a build with sanitizers has none)")
    return library


def add_huggingface_to_path() -> None:
    # Last, so that no file of ours can shadow a module of the standard library.
    if str(HUGGINGFACE) not in sys.path:
        sys.path.append(str(HUGGINGFACE))


def feature_maps() -> dict[str, Any]:
    """Every map's row, as exports have it."""
    module: dict[str, Any] = runpy.run_path(str(HUGGINGFACE / "modeling" / "feature_map_rows_hedgerow.py"))
    return module["FEATURE_MAPS"]


def write_export(directory: Path, config: dict, attention: dict, softmax_layers: list[int], body: str = "llama") -> None:
    """config.json and the model files of an export; weights are the caller's."""
    directory.mkdir(parents=True, exist_ok=True)
    full = {**config, "model_type": body, "architectures": ["HedgerowForCausalLM"],
            "hidden_act": "hedgerow, which needs trust_remote_code=True",
            "auto_map": {"AutoConfig": "configuration_hedgerow.HedgerowConfig",
                         "AutoModel": "modeling_hedgerow.HedgerowModel",
                         "AutoModelForCausalLM": "modeling_hedgerow.HedgerowForCausalLM"},
            "hedgerow": {"format": "export/1", "body": body, "hidden_act": config.get("hidden_act", "silu"),
                         "attention": attention, "softmax_layers": softmax_layers}}
    (directory / "config.json").write_text(json.dumps(full))
    for source in (HUGGINGFACE / "modeling").glob("*.py"):
        shutil.copy(source, directory)
