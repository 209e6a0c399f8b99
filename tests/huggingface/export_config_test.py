"""An export's configuration against transformers': of an export whose layers all kept softmax attention, and whose
config.json has the teacher's keys, the logits are the teacher's. Keys and values are config_walk's."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
import support  # noqa: E402

support.require("torch", "transformers", "safetensors")

import torch  # noqa: E402
import transformers  # noqa: E402

import config_walk  # noqa: E402
import stranger_models as models  # noqa: E402

# What hedgerow exports: it refuses the others before.
KEYS = ("rope", "original_max", "layer_types", "sliding", "window", "num_key_value", "head_dim", "tie_", "hidden_act")
ATTENTION = {"feature_map": "hedgehog_softmax", "feature_dim": 32, "window": "terraced", "window_size": 8}


def is_walked(change: dict) -> bool:
    keys = [*change, *(key for value in change.values() if isinstance(value, dict) for key in value)]
    return any(key.startswith(KEYS) or "sliding" in key or "window" in key for key in change) and \
        "partial_rotary_factor" not in keys and change.get("hidden_act", "silu") in ("silu", "swish", config_walk.ABSENT)


class ExportConfiguration(unittest.TestCase):
    def test_an_export_reads_its_teachers_keys_as_transformers_does(self) -> None:
        transformers.logging.set_verbosity_error()
        compared, ids = 0, torch.from_numpy(config_walk.token_ids().astype("int64"))
        with tempfile.TemporaryDirectory() as name:
            for family, config in config_walk.configurations():
                base, changed, export = Path(name, family), Path(name, "changed"), Path(name, "export")
                models.random_model(config).save_pretrained(base)
                original = json.loads((base / "config.json").read_text())
                for change in filter(is_walked, config_walk.CHANGES):
                    if family == "mistral" and change.get("layer_types"):
                        continue  # refused by hedgerow
                    keys = {k: v for k, v in {**original, **change}.items() if v is not config_walk.ABSENT}
                    for folder in (changed, export):
                        shutil.rmtree(folder, ignore_errors=True)
                        folder.mkdir()
                        (folder / "model.safetensors").symlink_to(base / "model.safetensors")
                    (changed / "config.json").write_text(json.dumps(keys))
                    expected = config_walk.theirs(changed)
                    if isinstance(expected, Exception):
                        continue
                    support.write_export(export, keys, ATTENTION, list(range(config.num_hidden_layers)), family)
                    with self.subTest(f"{family} with {config_walk.shown(change)}"):
                        try:
                            student = transformers.AutoModelForCausalLM.from_pretrained(
                                export, trust_remote_code=True, dtype=torch.float32).eval()
                        except ValueError as error:  # refused by name, as an unknown rope_type
                            self.assertIn("config.json: ", str(error))
                            continue
                        with torch.no_grad():
                            difference = (student(ids).logits - expected).abs().max().item()
                        self.assertLess(difference, config_walk.LARGEST_DIFFERENCE)
                        compared += 1
        self.assertGreater(compared, 100)


if __name__ == "__main__":
    unittest.main()
