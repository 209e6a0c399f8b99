// Recurrent inference (LoLCATs eq. 3, with eq. 6's window): one token a step, constant memory. The
// state of one layer for a batch of sequences of different lengths: (S, z) of everything before the
// window, and the window's raw keys (after RoPE) and values at the kv heads. Prefill + decode,
// split at any position, equals the full forward in either layout: a terraced window keeps up to 2
// W keys and flushes a whole chunk when the third begins; a sliding one evicts one key a step.
// Inputs are bf16 or fp32. Wrong shapes, dtypes and devices throw c10::Error naming the argument,
// what was expected and what was found. One state belongs to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/hybrid_attention.hpp"

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
  // and stay exact, with their tokens, by token (kernels/recall_cache.hpp); -1, of no key, come
  // first. Of a sliding window's chunk some may still be in the window: they count there.
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

// The state after the first lengths[b] tokens of each row. k, v [B, G, T, D], right-padded; lengths
// [B] int64, 1..T, which are checked where they lie: on the CPU without waiting for the device of
// k, on that device by waiting for it. A row's state does not depend on the others nor on the
// padding. A map without parameters, of no window, has H = G until the first step.
DecodeState prefill_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options);

// One token a row: q [B, H, D], k and v [B, G, D] -> y [B, H, D] of q's dtype; `state` advances in
// place. No autograd. Never waits for the device, and what it launches depends on shapes alone: on
// CUDA a step can be captured in a graph and replayed.
at::Tensor decode_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       DecodeState& state,
                       const HybridParameters& parameters,
                       const HybridOptions& options);

}  // namespace hedgerow::kernels
