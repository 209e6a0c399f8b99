"""A linearized language model in plain PyTorch: the teacher's body with the student's attention.

Bodies: configuration_hedgerow.py. Copied into every export with the other *_hedgerow.py;
needs torch and transformers alone. Letters as in hybrid_hedgerow.py; M hidden_size, V vocab.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from .attention_hedgerow import HedgerowAttention
from .cache_hedgerow import HedgerowCache, Step
from .configuration_hedgerow import HedgerowConfig
from .feature_map_rows_hedgerow import FEATURE_MAPS
from .feature_maps_hedgerow import FeatureMapProjection
from .layers_hedgerow import HedgerowRMSNorm, rope_tables
from .packing_hedgerow import APART, BORDERS, check_positions, expand_positions, pack, packed_starts

logger = logging.get_logger("transformers.hedgerow")


class HedgerowMLP(nn.Module):
    def __init__(self, config: HedgerowConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=config.mlp_bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class HedgerowDecoderLayer(GradientCheckpointingLayer):
    def __init__(self, config: HedgerowConfig, layer_idx: int):
        super().__init__()
        self.self_attn = HedgerowAttention(config, layer_idx)
        self.mlp = HedgerowMLP(config)
        self.norms_after = config.body.norm_place == "after"
        for name in (("post_attention_layernorm", "post_feedforward_layernorm") if self.norms_after
                     else ("input_layernorm", "post_attention_layernorm")):
            setattr(self, name, HedgerowRMSNorm(config.hidden_size, config.rms_norm_eps))

    def forward(self, x: torch.Tensor, cos, sin, step: Step, past_key_values: HedgerowCache | None = None) -> torch.Tensor:
        if self.norms_after:
            x = x + self.post_attention_layernorm(self.self_attn(x, cos, sin, step, past_key_values))
            return x + self.post_feedforward_layernorm(self.mlp(x))
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, step, past_key_values)
        return x + self.mlp(self.post_attention_layernorm(x))


class HedgerowPreTrainedModel(PreTrainedModel):
    config_class = HedgerowConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # layers that kept softmax attention compute it so, whichever implementation is asked for
    _no_split_modules = ["HedgerowDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _is_stateful = True  # sums cannot be rolled back: no assisted generation
    # The maps were trained in fp32; bf16 would cost more than the file saves.
    _keep_in_fp32_modules_strict = ["feature_map_q", "feature_map_k", "window_factors"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, FeatureMapProjection):
            heads, head_dim, features = module.layer.shape
            bound = math.sqrt(6 / (head_dim * features))
            if FEATURE_MAPS[self.config.attention["feature_map"]].one_draw:
                nn.init.normal_(module.layer)
            else:
                nn.init.uniform_(module.layer, -bound, bound)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, HedgerowAttention) and hasattr(module, "window_factors"):
            nn.init.constant_(module.window_factors, self.config.attention.get("window_factor", math.log(0.1 / 0.9)))


class HedgerowModel(HedgerowPreTrainedModel):
    def __init__(self, config: HedgerowConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(HedgerowDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = HedgerowRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.gradient_checkpointing = False
        self.post_init()

    def _refuse(self, kwargs: dict[str, Any]) -> None:
        """Throws ValueError of arguments that would change the result of transformers' own models and cannot change ours."""
        asked = kwargs.get("output_attentions")
        if self.config.output_attentions if asked is None else asked:
            raise ValueError("output_attentions: linear attention has no attention weights to give; leave it out")
        if kwargs.get("is_causal", getattr(self.config, "is_causal", None)) is False:
            raise ValueError("is_causal: the student's attention is causal; is_causal=False cannot be computed")

    def _step(self, shape: tuple[int, int], attention_mask: torch.Tensor | None, cache: HedgerowCache | None,
              device: torch.device, position_ids: torch.Tensor | None = None,
              borders: dict[str, torch.Tensor] | None = None) -> Step:
        """Reads the 2-D attention mask (1: real), the caller's positions, and borders of packed sequences by their names.

        A row's real new tokens must be contiguous: left- or right-padded.
        """
        batch, length = shape
        zeros = torch.zeros(batch, dtype=torch.int64, device=device)
        fresh = cache is None or cache.seen is None
        seen, offset = (zeros, zeros) if fresh else (cache.seen, cache.offset)
        past, past_columns = (None, 0) if cache is None else (cache.real, cache.columns)
        if position_ids is not None:
            position_ids = expand_positions(position_ids, shape)
        if attention_mask is not None and attention_mask.shape != (batch, past_columns + length):
            raise ValueError(f"attention_mask: expected [batch, tokens so far], {[batch, past_columns + length]}, "
                             f"found {list(attention_mask.shape)}")
        starts = None
        if attention_mask is None and cache is None:
            starts = packed_starts(shape, position_ids, borders or {})
        elif borders:
            raise ValueError(f"{next(iter(borders))}: {APART}")
        first, count, padded = zeros, zeros + length, False
        new = torch.ones(batch, length, dtype=torch.bool, device=device)
        if attention_mask is not None:
            new, old = attention_mask[:, past_columns:].bool(), attention_mask[:, :past_columns].bool()
            count, first = new.sum(1), new.int().argmax(1)
            last = length - 1 - new.int().flip(1).argmax(1)
            gaps, changed = (last - first + 1 != count) & (count > 0), old.sum(1) != seen
            # One wait for the device: a GPU that decodes is not to wait for each of them.
            padded, has_gaps, has_changed = torch.stack((~new.all(), gaps.any(), changed.any())).tolist()
            if has_gaps:
                raise ValueError("attention_mask: a row has padding between its tokens; pad left or right")
            if has_changed:
                raise ValueError("attention_mask: of the columns in past_key_values it marks other tokens as real than when "
                                 "they were computed; give the mask that they were computed with and the new columns")
        if starts is not None:
            packed, positions = pack(starts.to(device))
        else:
            packed, positions = None, seen[:, None] + torch.arange(length, device=device)[None] - first[:, None]
            if position_ids is not None and (attention_mask is not None or cache is not None):
                offset = check_positions(position_ids, positions, new, seen, offset)
        real = None
        if self.config.hedgerow.get("softmax_layers") and (padded or past is not None):
            before = past if past is not None else torch.ones(batch, past_columns, dtype=torch.bool, device=device)
            real = torch.cat((before, new), dim=1)
        if torch.compiler.is_compiling():  # a traced operator takes tensors of one device
            count_to_read = count
        else:  # once a forward: every layer's prefill reads it
            count_to_read = count.cpu() if padded else torch.full((batch,), length, device="cpu")
        return Step(first, count, count_to_read, seen, real, length == 1 and not padded, not padded,
                    padded and bool((count == 0).any()), positions.clamp(min=0), offset, packed)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: HedgerowCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Hidden states [B, T, M] behind the last norm. What position_ids and cu_seq_lens_q do: packing_hedgerow.py."""
        self._refuse(kwargs)
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if past_key_values is not None and not isinstance(past_key_values, HedgerowCache):
            raise ValueError(f"past_key_values: expected a HedgerowCache, found {type(past_key_values).__name__}")
        use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
        if self.gradient_checkpointing and self.training:
            if past_key_values is not None:
                raise ValueError("past_key_values: gradient checkpointing computes layers twice, and would advance it twice")
            if use_cache:
                logger.warning_once("`use_cache=True` is incompatible with gradient checkpointing. "
                                    "Setting `use_cache=False`.")
                use_cache = False
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        elif not isinstance(output_hidden_states, bool):
            raise ValueError(f"output_hidden_states: expected True or False, found {output_hidden_states!r}")
        cache = past_key_values
        if cache is None and use_cache:
            cache = HedgerowCache(self.config.num_hidden_layers)
        borders = {name: kwargs[name] for name in BORDERS if kwargs.get(name) is not None}
        step = self._step((x.shape[0], x.shape[1]), attention_mask, cache, x.device, position_ids, borders)
        cos, sin = rope_tables(self.config, step.positions, x.dtype)
        hidden = []
        for layer in self.layers:
            hidden.append(x) if output_hidden_states else None
            x = layer(x, cos, sin, step, past_key_values=cache)
        x = self.norm(x)
        if cache is not None:
            cache.seen, cache.offset, cache.real = step.seen + step.count, step.offset, step.real
            cache.columns += x.shape[1]
        return BaseModelOutputWithPast(last_hidden_state=x, past_key_values=cache,
                                       hidden_states=(*hidden, x) if output_hidden_states else None)


class HedgerowForCausalLM(HedgerowPreTrainedModel, GenerationMixin):
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: HedgerowConfig):
        super().__init__(config)
        self.model = HedgerowModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # forward makes a HedgerowCache itself

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any):
        """Makes the cache before the prefill, which `prefill_chunk_size` asks for."""
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = HedgerowCache(self.config.num_hidden_layers)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        past_key_values: HedgerowCache | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        output_hidden_states: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [B, T or logits_to_keep, V]; with labels also the loss, as transformers' own causal models have it.

        That is the next-token cross-entropy over labels other than ignore_index (-100): the mean, or with num_items_in_batch
        the sum divided by it, as accumulation of gradients needs; shift_labels [B, T], if given, are already shifted.
        """
        body = self.model(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache,
                          output_hidden_states, return_dict=True, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else slice(None)
        kept = logits_to_keep if torch.is_tensor(logits_to_keep) else kept
        logits = self.lm_head(body.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=body.past_key_values,
                                      hidden_states=body.hidden_states)


HedgerowModel.register_for_auto_class("AutoModel")
HedgerowForCausalLM.register_for_auto_class("AutoModelForCausalLM")
