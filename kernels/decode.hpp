// Recurrent inference (LoLCATs eq. 3, with eq. 6's window): one token a step, constant memory. The
// state of one layer for a batch of sequences of different lengths: (S, z) of everything before the
// window, and the window's raw keys (after RoPE) and values at the kv heads. Prefill + decode,
// split at any position, equals the full forward in either layout: a terraced window keeps up to 2
// W keys and flushes a whole chunk when the third begins; a sliding one evicts one key a step.
// Inputs are bf16 or fp32. Wrong shapes, dtypes and devices throw c10::Error naming the argument,
// what was expected and what was found. One state belongs to one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/backend.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/problem/decode_state.hpp"

namespace hedgerow::kernels {

// The state after the first lengths[b] tokens of each row. k, v [B, G, T, D], right-padded; lengths
// [B] int64, 1..T, which are checked where they lie: on the CPU without waiting for the device of
// k, on that device by waiting for it. A row's state does not depend on the others nor on the
// padding. A map without parameters, of no window, has H = G until the first step. kCuda has no
// recall cache.
DecodeState prefill_state(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& lengths,
                          const HybridParameters& parameters,
                          const HybridOptions& options,
                          Backend backend = Backend::kAuto);

// One token a row: q [B, H, D], k and v [B, G, D] -> y [B, H, D] of q's dtype; `state` advances in
// place. No autograd. Never waits for the device, and what it launches depends on shapes alone: on
// CUDA a step can be captured in a graph and replayed.
at::Tensor decode_step(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       DecodeState& state,
                       const HybridParameters& parameters,
                       const HybridOptions& options,
                       Backend backend = Backend::kAuto);

// The checks of prefill_state, without the parameters and without what only the values of lengths
// tell; and those of decode_step, without the parameters and the state.
void check_prefill(const at::Tensor& k, const at::Tensor& v, const at::Tensor& lengths);
AttentionShape check_token(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace hedgerow::kernels
