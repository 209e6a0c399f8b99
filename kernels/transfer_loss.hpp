// The attention-transfer losses, without a T x T tensor: the outputs' mean squared error (LoLCATs
// eq. 5, whose sum over a block is eq. 7) and the weights' cross-entropy (Hedgehog eq. 3). Wrong
// shapes, dtypes and devices throw c10::Error naming the argument, what was expected and what was
// found. Any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/backend.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// mean over all elements of (y_pred - y_true)^2 -> scalar fp32. Both of one shape, each bf16 or
// fp32 (or y_pred fp64: then all in fp64), in any layout. y_true carries no gradient.
at::Tensor transfer_mse(const at::Tensor& y_pred,
                        const at::Tensor& y_true,
                        Backend backend = Backend::kAuto);

// Mean over the B H T query rows of -sum_j a_true_ij log(max(a_pred_ij, 1e-12)), a_true = the
// teacher's softmax weights, a_pred = the hybrid's normalised weights; zero gradient where the
// clamp acts. Walks tiles: O(T^2) work, O(T) memory. q [B, H, T, D], k [B, G, T, D]. Differentiable
// in the maps and window_factors only. -> scalar fp32, fp64 for fp64 input (the reference below,
// in kAten the sums of that backend).
at::Tensor transfer_cross_entropy(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options,
                                  Backend backend = Backend::kAuto);

// The same with T x T tensors and ATen's autograd (tests).
at::Tensor transfer_cross_entropy_reference(const at::Tensor& q,
                                            const at::Tensor& k,
                                            const HybridParameters& parameters,
                                            const HybridOptions& options);

// The checks of transfer_mse.
void check_mean_square(const at::Tensor& y_pred, const at::Tensor& y_true);

}  // namespace hedgerow::kernels
