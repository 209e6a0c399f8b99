// The state of recurrent inference (kernels/decode.hpp) that a layer keeps for a batch of
// sequences: what every backend of prefill and of a step reads and writes. One state belongs to one
// thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

struct DecodeState {
  // U = H or G: one state a key map (HybridParameters::k).
  at::Tensor kv_state;   // [B, U, F, D] fp32: sum of phi_k v^T over keys before the window
  at::Tensor k_state;    // [B, U, F] fp32
  at::Tensor window_k;   // [B, G, C, D] input dtype, ring buffer; C = W (sliding), 2 W (terraced)
  at::Tensor window_v;   // [B, G, C, D]; token t of a row lies at slot t mod C
  at::Tensor positions;  // [B] int64: tokens seen so far by each row
  // [B, G, num_sinks, D] input dtype: the first tokens, once they are seen; undefined without
  // sinks.
  at::Tensor sink_k{}, sink_v{};
  // [B, G, recall_cache, D] input dtype and [B, G, recall_cache] int64: keys that left the window
  // and stay exact, with their tokens, by token (kernels/problem/recall_cache.hpp); -1, of no key,
  // come first. Of a sliding window's chunk some may still be in the window: they count there.
  // Undefined without a cache.
  at::Tensor recall_k{}, recall_v{}, recall_positions{};
};

// C: slots of a window's ring; 1 without a window.
[[nodiscard]] std::int64_t ring_slots(const HybridOptions& options);

// Heads of the key map, and states. A map without parameters, of no window, leaves them to be
// the kv heads, until the first step brings queries.
[[nodiscard]] std::int64_t num_heads_of(const HybridParameters& parameters,
                                        std::int64_t num_kv_heads);

// An empty state (no token seen).
DecodeState make_decode_state(std::int64_t batch,
                              std::int64_t num_key_heads,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              std::int64_t feature_dim,
                              at::ScalarType dtype,
                              const at::Device& device,
                              const HybridOptions& options);

}  // namespace hedgerow::kernels
