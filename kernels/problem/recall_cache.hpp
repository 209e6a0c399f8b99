// An exact cache of the keys that the state recalls worst (LoLA, arXiv 2505.23666; HOLA, arXiv
// 2607.02303; no training). A kv head keeps N = HybridOptions::recall_cache keys under softmax, in
// the window's sums and in its maximum; the others that left the window are in (S, z).
//
// Choice c = 0, 1, 2, ... is made once a chunk of W = window_size tokens, serially. Its candidates
// are the keys in the cache and the tokens of chunk c that are no sinks. A candidate's score is
// its residual
//   r_j = sum_u |v_j - phi_u(k_j)^T S_u / phi_u(k_j)^T z_u|^2
// over the key maps u of the kv head, against the (S, z) of all that was folded before; |v_j|^2
// while nothing was. The N largest stay (at equal scores the earlier token), the others are folded:
// S += phi v^T, z += phi. fp32 whatever the inputs are. The choices are the same in both layouts,
// what differs is when they count:
//   terraced  choice c from query (c + 2) W on, when chunk c leaves the window
//   sliding   choice c from query (c + 1) W on: what it keeps of chunk c is exact in the window
//             and behind it; what it does not is folded as it leaves the window
// No key is in both branches or in none. Prefill and decode, split anywhere, choose as the whole
// sequence does, because a choice reads complete chunks alone.
//
// ATen operations on the inputs' device, nothing waits for it; autograd passes a choice as a
// constant. On the CPU the same is done by tiles (kernels/cpu/recall_cpu.hpp), and at a decode step
// on CUDA by a kernel (kernels/cuda/decode/decode_recall.cuh).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/options/recall_mass.hpp"
#include "kernels/problem/decode_state.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// What one choice reads and changes. Rows are sequences; U key maps, M = W candidates of a chunk.
struct RecallState {
  at::Tensor kv_state;   // [B, U, F, D] fp32 (fp64 for fp64 inputs)
  at::Tensor k_state;    // [B, U, F]
  at::Tensor k, v;       // [B, G, N, D] of the inputs' dtype: the cache, by position
  at::Tensor positions;  // [B, G, N] int64; -1: no key, and such entries come first
};

// An empty one.
[[nodiscard]] RecallState make_recall_state(std::int64_t batch,
                                            std::int64_t num_key_heads,
                                            std::int64_t num_kv_heads,
                                            std::int64_t head_dim,
                                            std::int64_t feature_dim,
                                            const at::Tensor& like,
                                            const HybridOptions& options);

// One choice in the rows that `active` [B] bool marks; the others stay as they are. k, v
// [B, G, W, D]: the tokens first[b], first[b] + 1, ... of a row. With `folds_chunk` what is dropped
// of the chunk is folded too (terraced), else when it leaves the window.
void choose_recalled(RecallState& state,
                     const at::Tensor& k,
                     const at::Tensor& v,
                     const at::Tensor& first,
                     const at::Tensor& active,
                     bool folds_chunk,
                     const HybridParameters& parameters,
                     const HybridOptions& options);

// (S, z) += phi [v, 1] of the tokens that `counts` [B, G, n] bool marks; k, v [B, G, n, D].
void fold_keys(RecallState& state,
               const at::Tensor& k,
               const at::Tensor& v,
               const at::Tensor& counts,
               const HybridParameters& parameters,
               const HybridOptions& options);

// hybrid_attention() with a cache, by chunks in ATen operations: O(T (2W + N + F) D), memory O(T).
// Differentiable. `kept`, if given, becomes the positions after each choice that some query met,
// [choices, B, G, N].
at::Tensor recall_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            at::Tensor* kept = nullptr);

// prefill_state()'s state with its cache, and what a decode step does before the new token's key is
// written: the choice and the tokens that leave the window. Both advance nothing else.
void prefill_recalled(const at::Tensor& k,
                      const at::Tensor& v,
                      const HybridParameters& parameters,
                      const HybridOptions& options,
                      const DecodeState& state);
void leave_window(const HybridParameters& parameters,
                  const HybridOptions& options,
                  const DecodeState& state);

}  // namespace hedgerow::kernels
