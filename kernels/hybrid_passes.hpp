// The two directions of the hybrid, and the cross-entropy, without autograd and in whichever form:
// what hybrid_attention.cpp puts behind autograd, and the PyTorch operators (ops/) behind theirs.
#pragma once

#include "kernels/forms.hpp"
#include "kernels/parameter_loss.hpp"

namespace hedgerow::kernels {

// The fused form of q's device where it takes the problem, which must have passed
// check_attention and check_parameters. input_gradients: whether dq, dk or dv may be asked for.
[[nodiscard]] Form hybrid_form_for(const at::Tensor& q,
                                   const HybridParameters& parameters,
                                   const HybridOptions& options,
                                   bool input_gradients);

// Both check their arguments as hybrid_attention does. v undefined: the denominators alone.
HybridForward hybrid_forward(Form form,
                             const at::Tensor& q,
                             const at::Tensor& k,
                             const at::Tensor& v,
                             const HybridParameters& parameters,
                             const HybridOptions& options,
                             bool keep_for_backward);

// `forward` is of the same form, inputs and options, with keep_for_backward.
HybridGradients hybrid_backward(Form form,
                                const at::Tensor& q,
                                const at::Tensor& k,
                                const at::Tensor& v,
                                const HybridParameters& parameters,
                                const HybridOptions& options,
                                const HybridForward& forward,
                                const at::Tensor& dy,
                                const HybridNeeds& needs);

// The same of the weights' cross-entropy (transfer_loss.cpp): value and, if wanted, gradients in
// one pass. kCpu takes no fp64.
[[nodiscard]] Form cross_entropy_form_for(const at::Tensor& q,
                                          const HybridParameters& parameters,
                                          const HybridOptions& options);
ParameterLoss cross_entropy(Form form,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const HybridParameters& parameters,
                            const HybridOptions& options,
                            bool with_gradients);

}  // namespace hedgerow::kernels
