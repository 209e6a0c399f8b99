// A frozen linear product and its transpose: what a layer of the base needs in training is y = x
// W^T + b and, backward, dx = dy W, never dW. Both matrices are kept packed where that applies
// (worker/model/packed_product.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hedgerow::worker {

class FrozenProduct {
 public:
  FrozenProduct() = default;
  // weight [out, in], bias [out] or undefined; packed for products of `rows` rows (others work,
  // slower).
  FrozenProduct(const at::Tensor& weight, const at::Tensor& bias, std::int64_t rows);

  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;    // [..., in] -> [..., out]
  [[nodiscard]] at::Tensor backward(const at::Tensor& dy) const;  // [..., out] -> [..., in]

 private:
  bool packed_ = false;
  at::Tensor weight_;      // [out, in], or packed
  at::Tensor transposed_;  // packed W^T; undefined when not packed
  at::Tensor bias_;
};

}  // namespace hedgerow::worker
