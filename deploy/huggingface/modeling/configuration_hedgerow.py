"""Configuration of a linearized model: the teacher's own config.json plus what its attention became.

The teacher's keys keep their names and places, model_type included, so that AutoTokenizer loads as the teacher's does. One
more, "hedgerow", says what the attention is:
  {"format": "export/1", "body": the teacher's model_type, "hidden_act": the teacher's,
   "attention": {the options of option_rows_hedgerow.py, "feature_dim", "bias", "key_maps", ...},
   "softmax_layers": [layers that kept softmax attention]}
In place of the teacher's hidden_act stands FOREIGN_ACTIVATION: the body's own class in transformers, which would compute
softmax attention, ends with an error that names it.
"""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from .architecture_rows_hedgerow import ARCHITECTURES, ArchitectureRow
from .feature_map_rows_hedgerow import FEATURE_MAPS
from .option_rows_hedgerow import OPTIONS, WINDOWS

KEY_MAPS = ("query_head", "kv_head")
ROPE_TYPES = ("default", "linear", "llama3")
FOREIGN_ACTIVATION = "hedgerow, which needs trust_remote_code=True"
ABSENT = 0  # the key is not in the file, which is not what null says


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"config.json: {name} is {value!r}; known: {', '.join(known)}. Is the export newer than this file?")
    return value


def check_options(attention: dict[str, Any]) -> None:
    """Raises ValueError naming the first option that is not what its row allows."""
    has_window = attention["window"] != "none"
    for name, row in OPTIONS.items():
        value = attention[name]
        if row.most is None or name == "window_size" and not has_window:
            continue
        most = row.most
        if row.of_window or row.within_window:
            most = 0 if not has_window else min(most, attention["window_size"]) if row.within_window else most
        is_number = type(value) is int or type(value) is float and type(row.default) is float
        if not is_number or not row.least <= value <= most or row.above_least and value == row.least:
            window = f"a window of {attention['window_size'] if has_window else 0} tokens takes" if row.of_window else "expected"
            raise ValueError(f"config.json: hedgerow.attention.{name} is {value!r}; {window} "
                             f"{'more than ' if row.above_least else ''}{row.least} to {most}. Export the model again")
    if attention["recall_cache"] and not FEATURE_MAPS[attention["feature_map"]].positive:
        raise ValueError(f"config.json: hedgerow.attention.recall_cache is {attention['recall_cache']}; features of "
                         f"{attention['feature_map']} have signs, so it must be 0. Export the model again")


class HedgerowConfig(PreTrainedConfig):
    """config.json of an export. Unknown keys of the teacher are kept as they are."""

    model_type = "hedgerow"
    keys_to_ignore_at_inference = ["past_key_values"]

    def __init__(
        self,
        vocab_size: int = 49152,
        hidden_size: int = 576,
        intermediate_size: int = 1536,
        num_hidden_layers: int = 30,
        num_attention_heads: int = 9,
        num_key_value_heads: int | None = ABSENT,
        head_dim: int | None = None,
        max_position_embeddings: int = 8192,
        rms_norm_eps: float | None = None,
        initializer_range: float = 0.02,
        hidden_act: str = "silu",
        attention_bias: bool = False,
        mlp_bias: bool = False,
        sliding_window: int | None = ABSENT,
        use_sliding_window: bool = False,
        max_window_layers: int = 28,
        layer_types: list[str] | None = None,
        no_rope_layers: list[int] | None = None,
        no_rope_layer_interval: int = 4,
        tie_word_embeddings: bool | None = None,
        rope_theta: float | None = None,
        rope_scaling: dict[str, Any] | None = None,
        rope_parameters: dict[str, Any] | None = None,
        use_cache: bool = True,
        hedgerow: dict[str, Any] | None = None,
        **kwargs: Any,
    ):
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.intermediate_size = intermediate_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.hedgerow = {"body": "llama", "attention": {}, "softmax_layers": [], "hidden_act": hidden_act, **(hedgerow or {})}
        one_of("hedgerow.body", self.hedgerow["body"], tuple(ARCHITECTURES))
        body = self.body
        if num_key_value_heads == ABSENT:
            num_key_value_heads = body.num_key_value_heads
        self.num_key_value_heads = num_key_value_heads or num_attention_heads
        self.head_dim = head_dim or body.head_dim or hidden_size // num_attention_heads
        self.max_position_embeddings = max_position_embeddings
        self.rms_norm_eps = body.rms_norm_eps if rms_norm_eps is None else rms_norm_eps
        self.initializer_range = initializer_range
        self.attention_bias = attention_bias
        self.mlp_bias = body.reads_mlp_bias and mlp_bias
        if sliding_window == ABSENT:
            sliding_window = body.sliding_window or None
        self.sliding_window = sliding_window
        self.use_sliding_window = use_sliding_window
        self.max_window_layers = max_window_layers
        self.layer_types = layer_types
        self.no_rope_layers = no_rope_layers
        self.no_rope_layer_interval = no_rope_layer_interval
        self.use_cache = use_cache

        # Older files write rope_theta and rope_scaling, newer ones rope_parameters; where both stand, the former counts.
        rope = dict(rope_scaling or rope_parameters or {})
        rope["rope_type"] = one_of("rope_type", rope.pop("rope_type", rope.pop("type", "default")), ROPE_TYPES)
        rope.pop("type", None)
        rope.setdefault("rope_theta", rope_theta if rope_theta is not None else body.rope_theta)
        if rope["rope_type"] == "llama3":
            beside = kwargs.get("original_max_position_embeddings")
            original = rope.get("original_max_position_embeddings", max_position_embeddings)
            rope["original_max_position_embeddings"] = original if beside is None else beside
        self.rope_parameters = rope

        self.hidden_act = self.hedgerow["hidden_act"]
        attention = self.attention
        one_of("hedgerow.attention.feature_map", attention["feature_map"], tuple(FEATURE_MAPS))
        one_of("hedgerow.attention.window", attention["window"], WINDOWS)
        one_of("hedgerow.attention.key_maps", attention["key_maps"], KEY_MAPS)
        check_options(attention)
        tied = body.ties_embeddings if tie_word_embeddings is None else tie_word_embeddings
        super().__init__(tie_word_embeddings=tied, **kwargs)

    @classmethod
    def get_config_dict(cls, *args: Any, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        config, rest = super().get_config_dict(*args, **kwargs)
        return {**config, "model_type": cls.model_type}, rest

    def to_dict(self) -> dict[str, Any]:
        """As an export's config.json has it, so that a saved model is one too."""
        return {**super().to_dict(), "model_type": self.hedgerow["body"], "hidden_act": FOREIGN_ACTIVATION}

    @property
    def body(self) -> ArchitectureRow:
        return ARCHITECTURES[self.hedgerow["body"]]

    @property
    def attention(self) -> dict[str, Any]:
        """What the student attends with, defaults filled in as in a hedgerow.json (storage/model/attention_spec.hpp)."""
        given = self.hedgerow.get("attention", {})
        filled = {name: row.default for name, row in OPTIONS.items()}
        filled |= {"feature_dim": 64, "bias": False, "key_maps": "query_head", **given}
        row = FEATURE_MAPS.get(filled["feature_map"])  # none: __init__ refuses the name
        if "negation" not in given:
            filled["negation"] = row is not None and row.negation
        filled.setdefault("projection", row is not None and row.projection)
        return filled

    @property
    def projected_dim(self) -> int:
        """f: columns of a feature map's weights."""
        spec = self.attention
        return spec["feature_dim"] // 2 if spec["negation"] else spec["feature_dim"]

    @property
    def num_key_maps(self) -> int:
        """U: heads of the key map, and states of a layer. A map without weights is one a query head."""
        spec = self.attention
        shared = spec["projection"] and spec["key_maps"] == "kv_head"
        return self.num_key_value_heads if shared else self.num_attention_heads

    def is_softmax_layer(self, layer_idx: int) -> bool:
        return layer_idx in self.hedgerow.get("softmax_layers", [])

    def teacher_window(self, layer_idx: int) -> int | None:
        """The teacher's own sliding window in this layer, for layers that kept softmax attention."""
        sliding = self.body.sliding
        if sliding == "never" or self.sliding_window is None:
            return None
        slides = True
        if sliding != "all_layers" and self.layer_types is not None:
            slides = self.layer_types[layer_idx] == "sliding_attention"
        elif sliding == "without_rope":
            slides = self.use_sliding_window and not self.has_rope(layer_idx)
        elif sliding == "by_layer":
            slides = layer_idx >= self.max_window_layers
        if sliding == "by_layer":
            slides = slides and self.use_sliding_window
        return self.sliding_window if slides else None

    def has_rope(self, layer_idx: int) -> bool:
        if not self.body.reads_no_rope_layers:
            return True
        if self.no_rope_layers is not None:
            return bool(self.no_rope_layers[layer_idx])
        return (layer_idx + 1) % self.no_rope_layer_interval != 0

    @property
    def qkv_bias(self) -> bool:
        return self.body.bias == "qkv" or self.o_bias

    @property
    def o_bias(self) -> bool:
        return self.body.bias == "by_key" and self.attention_bias


HedgerowConfig.register_for_auto_class()
