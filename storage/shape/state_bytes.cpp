#include "storage/shape/state_bytes.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::int64_t kKeyBytes = 2, kSumBytes = 4, kPositionBytes = 8;

// A key and its value, of all kv heads.
std::int64_t pair_bytes(const ModelConfig& model) {
  return std::int64_t{2} * model.num_key_value_heads * model.head_dim * kKeyBytes;
}

// Slots of a ring for each token of the window.
std::int64_t slots_of(WindowLayout layout) {
  switch (layout) {
    case WindowLayout::kNone:
      return 0;
    case WindowLayout::kSliding:
      return 1;
    case WindowLayout::kTerraced:
      return 2;
  }
  return 0;
}

}  // namespace

LayerState layer_state(const AttentionSpec& spec, const ModelConfig& model) {
  const std::int64_t pair = pair_bytes(model);
  const std::int64_t maps = spec.num_key_maps(model.num_attention_heads, model.num_key_value_heads);
  LayerState state;
  state.sinks = spec.num_sinks * pair;
  state.ring = slots_of(spec.window) * spec.window_size * pair;
  state.recall = spec.recall_cache * (pair + model.num_key_value_heads * kPositionBytes);
  state.sums = maps * spec.feature_dim * (model.head_dim + std::int64_t{1}) * kSumBytes;
  return state;
}

std::int64_t state_bytes(const AttentionSpec& spec,
                         const ModelConfig& model,
                         int num_softmax_layers,
                         std::int64_t tokens) {
  const std::int64_t linear = model.num_hidden_layers - num_softmax_layers;
  return linear * layer_state(spec, model).total() +
         num_softmax_layers * tokens * pair_bytes(model);
}

int equal_window(const AttentionSpec& spec, const ModelConfig& model) {
  const std::int64_t slots = slots_of(spec.window);
  if (slots == 0) return 0;
  const LayerState state = layer_state(spec, model);
  const std::int64_t of_token = slots * pair_bytes(model);
  return static_cast<int>((state.total() - state.sinks + of_token - 1) / of_token);
}

}  // namespace hedgerow::storage
