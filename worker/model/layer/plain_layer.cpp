#include "worker/model/layer/plain_layer.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "worker/model/layer/mlp.hpp"

namespace hedgerow::worker {
namespace {

at::Tensor plain_product(FrozenProduct LayerWeights::*product,
                         const at::Tensor& x,
                         const LayerWeights& weights,
                         const LayerContext& context,
                         const LayerLora& lora) {
  const FrozenProduct& frozen = weights.*product;
  const auto* slots = std::ranges::find(kProducts, product, &ProductSlots::product);
  std::vector<at::Tensor> columns;
  for (const storage::Slot slot : slots->all()) {
    if (const auto pair = lora.pairs.find(slot); pair != lora.pairs.end()) {
      columns.push_back(at::linear(at::linear(x, pair->second.a), pair->second.b) * lora.scaling);
    } else {
      auto shape = x.sizes().vec();
      shape.back() = storage::linear_module(context.config, slot).rows;
      columns.push_back(at::zeros(shape, x.options()));
    }
  }
  return at::linear(x, frozen.weight(), frozen.bias()) + at::cat(columns, -1);
}

}  // namespace

at::Tensor plain_layer(const at::Tensor& hidden_states,
                       const LayerWeights& weights,
                       const LayerContext& context,
                       const std::function<at::Tensor(const Qkv&)>& attend,
                       const LayerLora& lora) {
  const storage::ModelConfig& config = context.config;
  const bool is_before = config.norm_place == storage::NormPlace::kBefore;
  const auto norm = [&](bool applies, const at::Tensor& x, const at::Tensor& weight) {
    return applies ? plain_rms_norm(x, weight, config.rms_norm_eps) : x;
  };
  const auto product = [&](FrozenProduct LayerWeights::*which, const at::Tensor& x) {
    return plain_product(which, x, weights, context, lora);
  };
  const Qkv heads = plain_split_heads(
      product(&LayerWeights::qkv, norm(is_before, hidden_states, weights.attention_norm)),
      config.num_attention_heads,
      config.num_key_value_heads,
      weights.has_rope ? context.rope : identity_like(context.rope),
      {weights.q_norm, weights.k_norm, config.rms_norm_eps});
  const at::Tensor attended = product(&LayerWeights::o, attend(heads).transpose(1, 2).flatten(2));
  const at::Tensor mid = hidden_states + norm(!is_before, attended, weights.attention_norm);
  const at::Tensor gate_up =
      product(&LayerWeights::gate_up, norm(is_before, mid, weights.mlp_norm));
  return mid +
         norm(!is_before, product(&LayerWeights::down, plain_swiglu(gate_up)), weights.mlp_norm);
}

}  // namespace hedgerow::worker
