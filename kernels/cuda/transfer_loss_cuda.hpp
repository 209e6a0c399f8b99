// The weights' cross-entropy on CUDA: tensors to the kernels of
// kernels/cuda/transfer/cross_entropy_*.
#pragma once

#include <string>

#include "kernels/problem/parameter_loss.hpp"

namespace hedgerow::kernels::cuda {

// As HybridBackend::why_not.
std::string why_no_cross_entropy(const at::Tensor& q,
                                 const HybridParameters& parameters,
                                 const HybridOptions& options);

// Value and, if wanted, all gradients; problem.v undefined. Memory O(T): features of both sides.
ParameterLoss cross_entropy_cuda(const HybridProblem& problem, bool with_gradients);

}  // namespace hedgerow::kernels::cuda
