// One layer's share of attention transfer (LoLCATs, arXiv 2410.10254 section 3.2): from one read of
// q, k and v the teacher's output, the student's beside it, and their mean squared error (eq. 5)
// with its gradient for the maps. Fused on CUDA; elsewhere softmax_attention, hybrid_attention and
// transfer_mse after one another.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::kernels {

struct AttentionTransfer {
  at::Tensor y_true;  // [B, H, T, D] of q's dtype: what softmax_attention gives for each sequence
                      // alone, bit for bit. No autograd
  at::Tensor mse;     // scalar fp32 (fp64 for fp64 input): mean (y - y_true)^2, y in fp32
};

// q [B, H, T, D], k and v [B, G, T, D], bf16 or fp32; parameters and options as hybrid_attention's
// (fp32_output counts for nothing). mse is differentiable in the maps and window_factors alone: q,
// k and v are constants. A NaN in q, k or v reaches both results. Memory O(T). Any thread; on CUDA
// the current stream, without waiting for it; throws c10::Error naming the argument, what was
// expected and what was found.
AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options);

}  // namespace hedgerow::kernels
