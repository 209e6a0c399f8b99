#include "worker/model/layer/frozen_product.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <optional>
#include <utility>

#include "worker/model/layer/cpu_rows.hpp"

namespace hedgerow::worker {
namespace {

// PyTorch's own compiler calls these operators; they have no C++ declaration.
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

}  // namespace

FrozenProduct::FrozenProduct(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

void FrozenProduct::pack(std::int64_t rows) {
  if (packed_ || !can_pack(weight_)) return;
  weight_ = worker::pack(weight_, rows);
  packed_ = true;
}

void FrozenProduct::pack_with_transpose(std::int64_t rows) {
  if (packed_ || !can_pack(weight_)) return;
  // In this order three of the matrix are in memory at a time, not four.
  transposed_ = worker::pack(weight_.t().contiguous(), rows);
  pack(rows);
}

at::Tensor FrozenProduct::forward(const at::Tensor& x) const {
  RECORD_USER_SCOPE("hedgerow::frozen_product");
  if (packed_) return packed_linear(x, weight_, bias_);
  return cpu::takes_few_rows(x, weight_) ? cpu::few_rows_product(x, weight_, bias_)
                                         : at::linear(x, weight_, bias_);
}

at::Tensor FrozenProduct::backward(const at::Tensor& dy) const {
  RECORD_USER_SCOPE("hedgerow::frozen_product");
  TORCH_CHECK(!packed_ || transposed_.defined(),
              "a product without its transpose goes forward only");
  return packed_ ? packed_linear(dy, transposed_, {}) : at::matmul(dy, weight_);
}

const at::Tensor& FrozenProduct::weight() const {
  static const at::Tensor undefined;
  return packed_ ? undefined : weight_;
}

}  // namespace hedgerow::worker
