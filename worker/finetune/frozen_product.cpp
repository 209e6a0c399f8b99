#include "worker/finetune/frozen_product.hpp"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace hedgerow::worker {
namespace {

// PyTorch's own fused-linear operators, which its compiler calls; they have no C++ declaration.
at::Tensor pack(const at::Tensor& weight, std::int64_t rows) {
  using Signature = at::Tensor(const at::Tensor&, std::optional<std::int64_t>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Signature>();
  return op.call(weight, rows);
}

at::Tensor packed_product(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias) {
  using Signature = at::Tensor(const at::Tensor&,
                               const at::Tensor&,
                               const std::optional<at::Tensor>&,
                               c10::string_view,
                               c10::List<std::optional<at::Scalar>>,
                               std::optional<c10::string_view>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                             .typed<Signature>();
  return op.call(x,
                 packed,
                 bias.defined() ? std::optional(bias) : std::nullopt,
                 "none",
                 c10::List<std::optional<at::Scalar>>(),
                 "");
}

}  // namespace

FrozenProduct::FrozenProduct(const at::Tensor& weight, const at::Tensor& bias, std::int64_t rows)
    : packed_(weight.is_cpu() && weight.scalar_type() == at::kBFloat16 && at::hasMKLDNN()),
      weight_(weight),
      bias_(bias) {
  if (!packed_) return;
  weight_ = pack(weight, rows);
  transposed_ = pack(weight.t().contiguous(), rows);
}

at::Tensor FrozenProduct::forward(const at::Tensor& x) const {
  return packed_ ? packed_product(x, weight_, bias_) : at::linear(x, weight_, bias_);
}

at::Tensor FrozenProduct::backward(const at::Tensor& dy) const {
  return packed_ ? packed_product(dy, transposed_, {}) : at::matmul(dy, weight_);
}

}  // namespace hedgerow::worker
