// The two directions of the hybrid, and the cross-entropy, without autograd and in whichever
// backend: what hybrid_attention.cpp, transfer_loss.cpp and attention_transfer.cpp put behind
// autograd, and the PyTorch operators (ops/) behind theirs.
#pragma once

#include "kernels/backend.hpp"
#include "kernels/problem/parameter_loss.hpp"

namespace hedgerow::kernels {

// The backend that computes the hybrid, as choose_backend says. The problem must have passed
// check_attention and check_parameters. input_gradients: whether dq, dk or dv may be asked for.
[[nodiscard]] Backend hybrid_backend_for(const at::Tensor& q,
                                         const HybridParameters& parameters,
                                         const HybridOptions& options,
                                         bool input_gradients,
                                         Backend asked = Backend::kAuto);

// problem.v undefined: the denominators alone. `backend` is none but what hybrid_backend_for gives.
HybridForward hybrid_forward(Backend backend, const HybridProblem& problem, bool keep_for_backward);

// `forward` is of the same backend and problem, with keep_for_backward.
HybridGradients hybrid_backward(Backend backend,
                                const HybridProblem& problem,
                                const HybridForward& forward,
                                const at::Tensor& dy,
                                const HybridNeeds& needs);

// The same for the cross-entropy of the weights: value and, if wanted, gradients in one pass.
// problem.v is undefined. kCpu takes no fp64.
[[nodiscard]] Backend cross_entropy_backend_for(const at::Tensor& q,
                                                const HybridParameters& parameters,
                                                const HybridOptions& options,
                                                Backend asked = Backend::kAuto);
ParameterLoss cross_entropy(Backend backend, const HybridProblem& problem, bool with_gradients);

}  // namespace hedgerow::kernels
