#include "kernels/cpu/tile_products.hpp"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_tiles.hpp"
#include "kernels/cpu/cpu_vector.hpp"

namespace hedgerow::kernels::cpu {
namespace {

// One block of c in registers: kRows x kVectors vectors. 8 x 2 keeps both FMA ports busy with 10
// loads for 16 products. k terms of one run; what c holds is added at the end.
template <std::int64_t kRows, std::int64_t kVectors>
HEDGEROW_INLINE void block(std::int64_t k,
                           const Left& left,
                           const float* right,
                           std::int64_t ldr,
                           float* c,
                           std::int64_t ldc,
                           bool add) {
  Lanes sum[static_cast<std::size_t>(kRows)][static_cast<std::size_t>(kVectors)] = {};
  for (std::int64_t p = 0; p < k; ++p) {
    Lanes b[static_cast<std::size_t>(kVectors)];
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < kVectors; ++j) {
      b[j] = load(right + p * ldr + j * kLanes);
    }
#pragma GCC unroll 8
    for (std::int64_t i = 0; i < kRows; ++i) {
      const float a = left.data[i * left.row_stride + p * left.col_stride];
#pragma GCC unroll 2
      for (std::int64_t j = 0; j < kVectors; ++j) {
        sum[i][j] += a * b[j];
      }
    }
  }
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < kVectors; ++j) {
      float* out = c + i * ldc + j * kLanes;
      store(out, add ? load(out) + sum[i][j] : sum[i][j]);
    }
  }
}

template <std::int64_t kVectors>
HEDGEROW_INLINE void panel(std::int64_t m,
                           std::int64_t k,
                           Left left,
                           const float* right,
                           std::int64_t ldr,
                           float* c,
                           std::int64_t ldc,
                           bool add) {
  const auto rows = [&]<std::int64_t kRows>() __attribute__((always_inline)) {
    block<kRows, kVectors>(k, left, right, ldr, c, ldc, add);
    left.data += kRows * left.row_stride;
    c += kRows * ldc;
    m -= kRows;
  };
  while (m >= 8) {
    rows.template operator()<8>();
  }
  if (m >= 4) {
    rows.template operator()<4>();
  }
  if (m >= 2) {
    rows.template operator()<2>();
  }
  if (m >= 1) {
    rows.template operator()<1>();
  }
}

HEDGEROW_CLONES void multiply_float(
    Size size, Left left, Right right, float* c, std::int64_t ldc, bool add) {
  const std::int64_t n = padded(size.n);
  std::int64_t first = 0;
  do {
    const std::int64_t k = std::min(kTermsPerRun, size.k - first);
    const Left rows{left.data + first * left.col_stride, left.row_stride, left.col_stride};
    const float* columns = right.data + first * right.ld;
    const bool adds = add || first > 0;
    std::int64_t column = 0;
    for (; column + 2 * kLanes <= n; column += 2 * kLanes) {
      panel<2>(size.m, k, rows, columns + column, right.ld, c + column, ldc, adds);
    }
    if (column < n) {
      panel<1>(size.m, k, rows, columns + column, right.ld, c + column, ldc, adds);
    }
    first += kTermsPerRun;
  } while (first < size.k);  // k = 0 sets c to 0
}

// out [m, k padded to even] bf16, row-major: the left factor as oneDNN's tile product reads it.
HEDGEROW_CLONES void pack_left(Left left, std::int64_t m, std::int64_t k, std::uint16_t* out) {
  const std::int64_t even = k + (k & 1);
  for (std::int64_t i = 0; i < m; ++i) {
    const float* row = left.data + i * left.row_stride;
    std::uint16_t* packed = out + i * even;
    std::int64_t p = 0;
    if (left.col_stride == 1) {
      for (; p + kLanes <= k; p += kLanes) {
        *reinterpret_cast<UnalignedShortLanes*>(packed + p) =
            __builtin_convertvector(to_bfloat16_bits(load(row + p)), ShortLanes);
      }
    }
    for (; p < k; ++p) {
      packed[p] = c10::BFloat16(row[p * left.col_stride]).x;
    }
    if (even != k) {
      packed[k] = 0;
    }
  }
}

// out [k / 2 rounded up, n, 2] bf16: pairs of rows interleaved (VNNI).
HEDGEROW_CLONES void pack_right(Right right, std::int64_t k, std::int64_t n, std::uint16_t* out) {
  for (std::int64_t p = 0; p < k; p += 2) {
    for (std::int64_t j = 0; j < n; j += kLanes) {
      const UnsignedLanes low = to_bfloat16_bits(load(right.data + p * right.ld + j));
      const UnsignedLanes high =
          p + 1 < k ? to_bfloat16_bits(load(right.data + (p + 1) * right.ld + j)) : UnsignedLanes{};
      *reinterpret_cast<UnalignedUnsignedLanes*>(out + p * n + 2 * j) = low | (high << 16);
    }
  }
}

void multiply_bfloat16(Size size, Left left, Right right, float* c, std::int64_t ldc, bool add) {
  if (size.m == 0) return;  // the first tile has no linear keys; oneDNN takes no empty factor
  static thread_local std::vector<std::uint16_t> left_space, right_space, left_rows;
  const std::int64_t n = padded(size.n), even = size.k + (size.k & 1);
  left_space.resize(static_cast<std::size_t>(size.m * even));
  right_space.resize(static_cast<std::size_t>(even * n));
  // A transpose of what is stored is turned first; anything else (the features of the query heads
  // that share a state) is read as it lies.
  if (left.col_stride == 1 || left.row_stride != 1) {
    pack_left(left, size.m, size.k, left_space.data());
  } else {
    static thread_local std::vector<float> rows;
    rows.resize(static_cast<std::size_t>(size.m * padded(size.k)));
    transpose(left.data, left.col_stride, size.k, size.m, rows.data(), padded(size.k));
    pack_left(as_stored(rows.data(), padded(size.k)), size.m, size.k, left_space.data());
  }
  pack_right(right, size.k, n, right_space.data());
  at::native::cpublas::brgemm(size.m,
                              n,
                              even,
                              even,
                              n,
                              ldc,
                              add,
                              reinterpret_cast<const at::BFloat16*>(left_space.data()),
                              reinterpret_cast<const at::BFloat16*>(right_space.data()),
                              c,
                              true);
}

}  // namespace

Products products_for(c10::ScalarType dtype) {
  return dtype == c10::ScalarType::BFloat16 && at::native::cpublas::could_pack(dtype)
             ? Products::kBFloat16
             : Products::kFloat;
}

bool runs(Products products) {
  return products == Products::kFloat || __builtin_cpu_supports("avx512bf16") != 0;
}

ProductsScope::~ProductsScope() {
  if (products_ == Products::kBFloat16) {
    at::native::cpublas::brgemm_release();
  }
}

void multiply(
    Products products, Size size, Left left, Right right, float* c, std::int64_t ldc, bool add) {
  if (products == Products::kFloat) {
    multiply_float(size, left, right, c, ldc, add);
  } else {
    multiply_bfloat16(size, left, right, c, ldc, add);
  }
}

}  // namespace hedgerow::kernels::cpu
