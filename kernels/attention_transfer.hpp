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
  // Scalar fp32 (fp64 for fp64 input): mean (y - y_true)^2, y in fp32.
  at::Tensor loss;
};

// q [B, H, T, D], k and v [B, G, T, D], bf16 or fp32; parameters and options as hybrid_attention's
// (fp32_output counts for nothing). loss is differentiable in the maps and window_factors alone: q,
// k and v are constants. A NaN in q, k or v reaches both results. Memory O(T). Another backend than kAuto and kCuda is the
// teacher's, the student's and the error's. Any thread; on CUDA the current stream, without waiting
// for it; throws c10::Error naming the argument, what was expected and what was found. y_true: what
// an earlier call gave for the same q, k and v, which is not computed again but by the fused
// kernel, whose walk it is part of.
AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options,
                                     Backend backend = Backend::kAuto,
                                     const at::Tensor& y_true = {});

}  // namespace hedgerow::kernels
