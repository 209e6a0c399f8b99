// Recurrent inference in ATen operations, for any device: all rows at once, each at its own
// position, without waiting for the device. Called by decode.cpp, which checks.
#pragma once

#include "kernels/problem/decode_state.hpp"

namespace hedgerow::kernels::aten {

// Fills an empty state whose positions hold each row's length.
void prefill_state_aten(const at::Tensor& k,
                        const at::Tensor& v,
                        const HybridParameters& parameters,
                        const HybridOptions& options,
                        const DecodeState& state);

at::Tensor decode_step_aten(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            const DecodeState& state);

}  // namespace hedgerow::kernels::aten
