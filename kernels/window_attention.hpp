// What an untrained student computes: softmax over the keys of a query's window and over the sinks
// alone, with no linear branch. The control that a trained student has to beat, and what is left of
// a student whose linear branch is switched off. The gate g and the shift by m cancel here:
//
//   y_i = sum_j softmax(s)_ij v_j,  s_ij = q_i.k_j / sqrt(D),  j in window(i) or j < num_sinks <= i
//
// (a sink that lies in the window counts once). Tiles of queries against the keys that any of them
// sees: O(T (W + tile) D), memory O(T) and a tile's weights. Any device (on CUDA in bf16 by the
// hybrid's kernel with its linear branch off); any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/backend.hpp"
#include "kernels/options/attention_options.hpp"

namespace hedgerow::kernels {

// q [B, H, T, D], k and v [B, G, T, D], bf16, fp32 or fp64 -> [B, H, T, D] of q's dtype (fp32 with
// fp32_output); of the options only layout, window_size, num_sinks and fp32_output count. Sums in
// fp32 (fp64 for fp64). A sequence gets the same bits whatever batch it comes in. No autograd.
// Throws c10::Error naming the argument, what was expected and what was found; also without a
// window (kNone).
at::Tensor window_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridOptions& options,
                            Backend backend = Backend::kAuto);

}  // namespace hedgerow::kernels
