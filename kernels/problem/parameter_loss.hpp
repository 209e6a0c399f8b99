// A loss of which only the hybrid's parameters learn, with the gradients that come with its value:
// what trains is small and what is walked is not, so one walk computes both and autograd's backward
// only scales. attention_transfer.cpp and transfer_loss.cpp put their backends behind it. Any
// thread.
#pragma once

#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels {

// What a backend gives in one walk.
struct ParameterLoss {
  at::Tensor loss;            // scalar, of the dtype that sums are in
  HybridGradients gradients;  // of the loss by the maps and window_factors, undefined where not
                              // needed; q, k, v undefined
};

// The parameters whose gradient autograd will ask for; none while autograd is off. q, k and v are
// always false.
[[nodiscard]] HybridNeeds needs_of(const HybridParameters& parameters);
[[nodiscard]] bool needs_any(const HybridNeeds& needs);

// The loss as autograd sees it, differentiable in those of the parameters that need a gradient; it
// holds the gradients until its backward. To be called with autograd as the caller of the loss has
// it; the backend that computed `result` had better run without.
[[nodiscard]] at::Tensor with_gradients(const ParameterLoss& result,
                                        const HybridParameters& parameters);

// A gradient in its parameter's shape and dtype, as autograd wants it; undefined stays undefined.
[[nodiscard]] at::Tensor like_parameter(const at::Tensor& gradient, const at::Tensor& parameter);

}  // namespace hedgerow::kernels
