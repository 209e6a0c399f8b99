// The transfer losses in ATen operations, for any device, without waiting for it: the
// cross-entropy's value and gradients in one walk over tiles of queries, as in
// transfer_loss_cpu.hpp.
#pragma once

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/parameter_loss.hpp"

namespace hedgerow::kernels::aten {

at::Tensor mean_square_aten(const at::Tensor& y_pred, const at::Tensor& y_true);
// scale * 2 (y_pred - y_true) / elements, of y_pred's dtype; scale is a scalar on their device.
at::Tensor mean_square_gradient_aten(const at::Tensor& y_pred,
                                     const at::Tensor& y_true,
                                     const at::Tensor& scale);

ParameterLoss cross_entropy_aten(const HybridProblem& problem,
                                 bool with_gradients,
                                 std::int64_t part_elements = kPartElements);

}  // namespace hedgerow::kernels::aten
