// The two directions of the hybrid, and the cross-entropy, without autograd and in whichever
// backend: what hybrid_attention.cpp puts behind autograd, and the PyTorch operators (ops/) behind
// theirs.
#pragma once

#include "kernels/backend.hpp"
#include "kernels/parameter_loss.hpp"

namespace hedgerow::kernels {

// The fused backend of q's device where it takes the problem, which must have passed
// check_attention and check_parameters. input_gradients: whether dq, dk or dv may be asked for.
[[nodiscard]] Backend hybrid_backend_for(const at::Tensor& q,
                                         const HybridParameters& parameters,
                                         const HybridOptions& options,
                                         bool input_gradients);

// Both check their arguments as hybrid_attention does. v undefined: the denominators alone.
HybridForward hybrid_forward(Backend backend,
                             const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const HybridParameters& parameters,
                             const HybridOptions& options,
                             bool keep_for_backward);

// `forward` is of the same backend, inputs and options, with keep_for_backward. dy_linear: the
// gradient by y_linear (linear_output) where there is one; then for the parameters alone.
HybridGradients hybrid_backward(Backend backend,
                                const at::Tensor& q,
                                const at::Tensor& k,
                                const at::Tensor& v,
                                const HybridParameters& parameters,
                                const HybridOptions& options,
                                const HybridForward& forward,
                                const at::Tensor& dy,
                                const HybridNeeds& needs,
                                const at::Tensor& dy_linear = {});

// The same of the weights' cross-entropy (transfer_loss.cpp): value and, if wanted, gradients in
// one pass. kCpu takes no fp64.
[[nodiscard]] Backend cross_entropy_backend_for(const at::Tensor& q,
                                                const HybridParameters& parameters,
                                                const HybridOptions& options);
ParameterLoss cross_entropy(Backend backend,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            bool with_gradients);

}  // namespace hedgerow::kernels
