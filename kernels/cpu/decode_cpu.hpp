// Recurrent inference on the CPU: one task a (row, kv head), whose query heads share the window's
// keys. Called by decode.cpp, which checks.
#pragma once

#include "kernels/problem/decode_state.hpp"

namespace hedgerow::kernels::cpu {

// Fills an empty state whose positions hold each row's length.
void prefill_state_cpu(const at::Tensor& k,
                       const at::Tensor& v,
                       const HybridParameters& parameters,
                       const HybridOptions& options,
                       const DecodeState& state);

at::Tensor decode_step_cpu(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const HybridParameters& parameters,
                           const HybridOptions& options,
                           const DecodeState& state);

}  // namespace hedgerow::kernels::cpu
