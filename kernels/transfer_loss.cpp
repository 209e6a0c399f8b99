#include "kernels/transfer_loss.hpp"

#include <ATen/ATen.h>

#include "kernels/checks.hpp"

namespace hedgerow::kernels {

at::Tensor transfer_mse(const at::Tensor& y_pred, const at::Tensor& y_true) {
  TORCH_CHECK(y_pred.sizes() == y_true.sizes(),
              "transfer_mse: y_pred must have y_true's shape ",
              describe(y_true.sizes()),
              ", found ",
              describe(y_pred.sizes()));
  const auto widen = [](const at::Tensor& y) {
    return y.scalar_type() == at::kDouble ? y : y.to(at::kFloat);
  };
  return at::mse_loss(widen(y_pred), widen(y_true.detach()));
}

at::Tensor transfer_cross_entropy(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options) {
  return transfer_cross_entropy_reference(q, k, parameters, options);
}

}  // namespace hedgerow::kernels
