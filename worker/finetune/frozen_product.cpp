#include "worker/finetune/frozen_product.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "worker/model/packed_product.hpp"

namespace hedgerow::worker {

FrozenProduct::FrozenProduct(const at::Tensor& weight, const at::Tensor& bias, std::int64_t rows)
    : packed_(can_pack(weight)), weight_(weight), bias_(bias) {
  if (!packed_) return;
  // In this order three of the matrix are in memory at a time, not four.
  transposed_ = pack(weight.t().contiguous(), rows);
  weight_ = pack(weight, rows);
}

at::Tensor FrozenProduct::forward(const at::Tensor& x) const {
  RECORD_USER_SCOPE("hedgerow::frozen_product");
  return packed_ ? packed_linear(x, weight_, bias_) : at::linear(x, weight_, bias_);
}

at::Tensor FrozenProduct::backward(const at::Tensor& dy) const {
  RECORD_USER_SCOPE("hedgerow::frozen_product");
  return packed_ ? packed_linear(dy, transposed_, {}) : at::matmul(dy, weight_);
}

}  // namespace hedgerow::worker
