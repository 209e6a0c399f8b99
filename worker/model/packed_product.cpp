#include "worker/model/packed_product.hpp"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>

namespace hedgerow::worker {

bool can_pack(const at::Tensor& weight) {
  return weight.is_cpu() && weight.scalar_type() == at::kBFloat16 && at::hasMKLDNN();
}

at::Tensor pack(const at::Tensor& weight, std::int64_t rows) {
  using Signature = at::Tensor(const at::Tensor&, std::optional<std::int64_t>);
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Signature>();
  return op.call(weight, rows);
}

at::Tensor packed_linear(const at::Tensor& x, const at::Tensor& packed, const at::Tensor& bias) {
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

}  // namespace hedgerow::worker
