// Linear attention without a window (LoLCATs eq. 2): causal (chunked, carried state) and
// bidirectional (global sums):
//
//   y_i = phi_q_i (sum_j phi_k_j v_j^T) / (phi_q_i . sum_j phi_k_j + 1e-12)
//
// Takes features, not inputs, so that any map can be used. O(T F D).
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// phi_q, phi_k [B, H, T, F] fp32 (or both fp64), v [B, H, T, D] of any floating dtype -> [B, H, T,
// D] of v's dtype, rounded once. Differentiable in all three. Wrong shapes and dtypes throw
// c10::Error naming the argument, what was expected and what was found. Any thread.
at::Tensor causal_linear_attention(const at::Tensor& phi_q,
                                   const at::Tensor& phi_k,
                                   const at::Tensor& v);
at::Tensor bidirectional_linear_attention(const at::Tensor& phi_q,
                                          const at::Tensor& phi_k,
                                          const at::Tensor& v);

// The checks of both.
void check_linear_attention(const at::Tensor& phi_q, const at::Tensor& phi_k, const at::Tensor& v);

}  // namespace hedgerow::kernels
