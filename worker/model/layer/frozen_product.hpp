// A frozen linear product: y = x W^T + b and, backward, dx = dy W, never dW. Packed, a matrix is
// kept in oneDNN's blocked layout: on the CPU in bf16, packing it anew for every product costs
// about half as much as a product of 512 rows. The same primitive as at::linear runs, and gives the
// same bits. A handle: copies share the matrix, but one that is packed is packed alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hedgerow::worker {

class FrozenProduct {
 public:
  FrozenProduct() = default;
  // weight [out, in], bias [out] or undefined, in the dtype of the product.
  FrozenProduct(at::Tensor weight, at::Tensor bias = {});

  // Packs for products of `rows` rows (others work, slower) and drops the plain matrix; a no-op
  // where packing does not apply (fp32, other devices) and on what is packed. With the transpose
  // backward() is fast too.
  void pack(std::int64_t rows);
  void pack_with_transpose(std::int64_t rows);

  [[nodiscard]] at::Tensor forward(const at::Tensor& x) const;  // [..., in] -> [..., out]
  // [..., out] -> [..., in]. Not after pack(), which keeps no transpose.
  [[nodiscard]] at::Tensor backward(const at::Tensor& dy) const;

  [[nodiscard]] const at::Tensor& weight() const;  // undefined once it is packed
  [[nodiscard]] const at::Tensor& bias() const { return bias_; }

 private:
  bool packed_ = false;
  at::Tensor weight_;      // [out, in], or packed
  at::Tensor transposed_;  // packed W^T
  at::Tensor bias_;
};

}  // namespace hedgerow::worker
