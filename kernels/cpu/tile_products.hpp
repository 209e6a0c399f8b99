// Products of tiles: row-major fp32 scratch whose rows are padded to whole vectors of 16 floats,
// multiplied in fp32 or, where the processor has AMX, in bf16 with fp32 sums. Called from inside
// at::parallel_for; starts no threads.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace hedgerow::kernels::cpu {

// n rounded up to whole vectors.
[[nodiscard]] constexpr std::int64_t padded(std::int64_t n) { return (n + 15) / 16 * 16; }

// Terms of a sum that are added up in one run; a longer one is the sum of such runs, or its
// rounding would grow with its length. fp32 products and column sums.
inline constexpr std::int64_t kTermsPerRun = 256;

// What a product multiplies in. kBFloat16 rounds both factors and accumulates in fp32 (AMX tiles,
// through oneDNN).
enum class Products { kFloat, kBFloat16 };

// bf16 products where the input is bf16 and the processor has AMX (on_cpu() keeps maps whose
// sums cancel from them). Elsewhere bf16 inputs are widened: oneDNN has no such tiles without AMX,
// and on Intel's AVX512_BF16 a bf16 product takes twice the time of an fp32 one and would only lose
// accuracy.
[[nodiscard]] Products products_for(c10::ScalarType dtype);

// Whether this processor can multiply so at all.
[[nodiscard]] bool runs(Products products);

// Every parallel section that multiplies holds one on its thread: AMX tiles must be given back, or
// the next user of the thread pays for their state.
class ProductsScope {
 public:
  explicit ProductsScope(Products products) : products_(products) {}
  ~ProductsScope();
  ProductsScope(const ProductsScope&) = delete;
  ProductsScope& operator=(const ProductsScope&) = delete;

 private:
  Products products_;
};

// The left factor, M x K, either as stored or as the transpose of what is stored.
struct Left {
  const float* data;
  std::int64_t row_stride, col_stride;
};
[[nodiscard]] constexpr Left as_stored(const float* data, std::int64_t ld) { return {data, ld, 1}; }
[[nodiscard]] constexpr Left transposed(const float* data, std::int64_t ld) {
  return {data, 1, ld};
}

// The right factor, K x N, rows of length >= N padded to 16.
struct Right {
  const float* data;
  std::int64_t ld;
};

struct Size {
  std::int64_t m, n, k;
};

// c [m, padded(n)] = left right, or += with `add`. Columns n..padded(n) of c are written too.
void multiply(
    Products products, Size size, Left left, Right right, float* c, std::int64_t ldc, bool add);

}  // namespace hedgerow::kernels::cpu
