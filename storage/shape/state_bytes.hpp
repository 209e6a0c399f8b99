// What one sequence keeps from step to step of generation, in bytes: the line on which a student
// and an untrained window stand side by side. Keys and values count as bf16 and sums as fp32, in
// which a card holds them. Pure arithmetic.
#pragma once

#include <cstdint>

#include "storage/model/model_config.hpp"
#include "storage/model/attention_spec.hpp"

namespace hedgerow::storage {

// The state of one layer, in bytes.
struct LayerState {
  std::int64_t sinks = 0, ring = 0;
  std::int64_t recall = 0;  // keys, values and positions of the cache
  std::int64_t sums = 0;    // S and z
  [[nodiscard]] std::int64_t total() const { return sinks + ring + recall + sums; }
};
[[nodiscard]] LayerState layer_state(const AttentionSpec& spec, const ModelConfig& model);

// Bytes of all layers; those of `num_softmax_layers` keep the keys and values of all `tokens`.
[[nodiscard]] std::int64_t state_bytes(const AttentionSpec& spec,
                                       const ModelConfig& model,
                                       int num_softmax_layers,
                                       std::int64_t tokens);

// The smallest window of the same layout and sinks that, with nothing beside it, has at least the
// bytes of a linear layer. 0 without a window.
[[nodiscard]] int equal_window(const AttentionSpec& spec, const ModelConfig& model);

}  // namespace hedgerow::storage
