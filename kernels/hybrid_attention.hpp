// Hybrid attention (LoLCATs, arXiv 2410.10254 eq. 6 and section 3.2): softmax inside a window,
// linear attention before it, one shared denominator. Per head, fp32 inside:
//
//   p_ij = g exp(s_ij - m_i)        keys in window(i); g = sigmoid(window_factor)
//   s_ij = q_i.k_j / sqrt(D)        m_i = max over the window
//   l_ij = phi_q(q_i).phi_k(k_j)    keys before the window
//   Z_i  = sum_j p_ij + sum_j l_ij
//   y_i  = (sum_j p_ij v_j + sum_j l_ij v_j) / Z_i
//
// The shift by m does not cancel against l: it is part of the model, and it is differentiated (ties
// share equally). Windows: sliding = the last W keys; terraced = the own chunk of W tokens and the
// whole previous one, borders anchored at token 0; and in both the sequence's first num_sinks
// tokens. No pair is in both branches, also for T <= W.
// Cost O(T (2W + F) D), memory O(T); states in fp32.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/backend.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// q [B, H, T, D], k and v [B, G, T, D], bf16 or fp32 (copied where D is not contiguous) -> y
// [B, H, T, D] of q's dtype. Any T >= 1. Differentiable in q, k, v, both maps and window_factors;
// gradients that autograd does not need are not computed. Accumulation fp32 whatever the input. The
// bytes do not depend on the number of threads. fp64 input gives the reference below, in kAten the
// sums of that backend. With a recall cache kCpu has no gradients. Any thread, several at once;
// throws c10::Error naming the argument, what was expected and what was found.
at::Tensor hybrid_attention(const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            Backend backend = Backend::kAuto);

// The definition above, written with T x T tensors and ATen's own autograd, in fp32 (fp64 for fp64
// input).
at::Tensor hybrid_attention_reference(const at::Tensor& q,
                                      const at::Tensor& k,
                                      const at::Tensor& v,
                                      const HybridParameters& parameters,
                                      const HybridOptions& options);

// [H] fp32 (fp64 for fp64 input): the mean over queries of sum_j l_ij / Z_i. A student that
// bypasses its linear branch shows here. No autograd. Errors as hybrid_attention's.
at::Tensor linear_share(const at::Tensor& q,
                        const at::Tensor& k,
                        const HybridParameters& parameters,
                        const HybridOptions& options,
                        Backend backend = Backend::kAuto);

}  // namespace hedgerow::kernels
