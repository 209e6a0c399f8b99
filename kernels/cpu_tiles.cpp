#include "kernels/cpu_tiles.hpp"

#include <ATen/native/CPUBlas.h>
#include <c10/util/BFloat16.h>

#include <cstring>
#include <vector>

#include "kernels/cpu_vector.hpp"

namespace hedgerow::kernels::cpu {
namespace {

// One block of c in registers: kRows x kVectors vectors. 8 x 2 keeps both FMA ports busy with 10
// loads for 16 products.
template <std::int64_t kRows, std::int64_t kVectors>
HEDGEROW_INLINE void block(std::int64_t k,
                           const Left& left,
                           const float* right,
                           std::int64_t ldr,
                           float* c,
                           std::int64_t ldc,
                           bool add) {
  Lanes sum[static_cast<std::size_t>(kRows)][static_cast<std::size_t>(kVectors)];
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (std::int64_t j = 0; j < kVectors; ++j) {
      sum[i][j] = add ? load(c + i * ldc + j * kLanes) : Lanes{};
    }
  }
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
      store(c + i * ldc + j * kLanes, sum[i][j]);
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
  std::int64_t column = 0;
  for (; column + 2 * kLanes <= n; column += 2 * kLanes) {
    panel<2>(size.m, size.k, left, right.data + column, right.ld, c + column, ldc, add);
  }
  if (column < n) {
    panel<1>(size.m, size.k, left, right.data + column, right.ld, c + column, ldc, add);
  }
}

using ShortLanes = std::uint16_t __attribute__((vector_size(32)));
using UnalignedShortLanes = std::uint16_t __attribute__((vector_size(32), aligned(2), may_alias));
using UnsignedLanes = std::uint32_t __attribute__((vector_size(64)));
using UnalignedUnsignedLanes =
    std::uint32_t __attribute__((vector_size(64), aligned(4), may_alias));

// bf16 bits in the low half of each lane, rounded to nearest even; a NaN stays one.
HEDGEROW_INLINE UnsignedLanes to_bfloat16_bits(Lanes x) {
  const UnsignedLanes bits = reinterpret_cast<UnsignedLanes>(x);
  const UnsignedLanes rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  return reinterpret_cast<IntLanes>(x != x) != 0 ? UnsignedLanes{} + 0x7fc0U : rounded;
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
  static thread_local std::vector<std::uint16_t> left_space, right_space, left_rows;
  const std::int64_t n = padded(size.n), even = size.k + (size.k & 1);
  left_space.resize(static_cast<std::size_t>(size.m * even));
  right_space.resize(static_cast<std::size_t>(even * n));
  if (left.col_stride == 1) {
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

// Exchanges the off-diagonal kStep x kStep blocks of each pair of rows (i, i + kStep): four rounds
// transpose 16 x 16.
template <int kStep>
HEDGEROW_INLINE void exchange(Lanes (&x)[16]) {
  IntLanes first, second;
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    first[i] = (i & kStep) == 0 ? i : 16 + i - kStep;
    second[i] = (i & kStep) == 0 ? i + kStep : 16 + i;
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if ((i & kStep) == 0) {
      const Lanes a = x[i], b = x[i + kStep];
      x[i] = __builtin_shuffle(a, b, first);
      x[i + kStep] = __builtin_shuffle(a, b, second);
    }
  }
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

HEDGEROW_CLONES void transpose(const float* in,
                               std::int64_t ld_in,
                               std::int64_t rows,
                               std::int64_t cols,
                               float* out,
                               std::int64_t ld_out) {
  for (std::int64_t r = 0; r < rows; r += kLanes) {
    const std::int64_t count = rows - r < kLanes ? rows - r : kLanes;
    std::int64_t c = 0;
    for (; c + kLanes <= cols; c += kLanes) {
      Lanes x[16];
      if (count == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          x[i] = load(in + (r + i) * ld_in + c);
        }
      } else {
        for (int i = 0; i < 16; ++i) {
          x[i] = i < count ? load(in + (r + i) * ld_in + c) : Lanes{};
        }
      }
      exchange<8>(x);
      exchange<4>(x);
      exchange<2>(x);
      exchange<1>(x);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        store(out + (c + i) * ld_out + r, x[i]);
      }
    }
    for (; c < cols; ++c) {
      for (std::int64_t i = 0; i < kLanes; ++i) {
        out[c * ld_out + r + i] = i < count ? in[(r + i) * ld_in + c] : 0.0F;
      }
    }
  }
}

HEDGEROW_CLONES void widen_rows(const void* in,
                                c10::ScalarType dtype,
                                std::int64_t ld_in,
                                std::int64_t rows,
                                std::int64_t cols,
                                float* out,
                                std::int64_t ld_out) {
  const std::int64_t width = padded(cols);
  for (std::int64_t r = 0; r < rows; ++r) {
    float* to = out + r * ld_out;
    if (dtype == c10::ScalarType::Float) {
      std::memcpy(to,
                  static_cast<const float*>(in) + r * ld_in,
                  static_cast<std::size_t>(cols) * sizeof(float));
    } else {
      const auto* from = static_cast<const std::uint16_t*>(in) + r * ld_in;
      std::int64_t c = 0;
      for (; c + kLanes <= cols; c += kLanes) {
        const ShortLanes bits = *reinterpret_cast<const UnalignedShortLanes*>(from + c);
        store(to + c, reinterpret_cast<Lanes>(__builtin_convertvector(bits, UnsignedLanes) << 16));
      }
      for (; c < cols; ++c) {
        to[c] = static_cast<float>(c10::BFloat16(from[c], c10::BFloat16::from_bits()));
      }
    }
    for (std::int64_t c = cols; c < width; ++c) {
      to[c] = 0.0F;
    }
  }
}

HEDGEROW_CLONES void narrow_rows(const float* in,
                                 std::int64_t ld_in,
                                 std::int64_t rows,
                                 std::int64_t cols,
                                 const float* scale,
                                 void* out,
                                 c10::ScalarType dtype,
                                 std::int64_t ld_out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float factor = scale == nullptr ? 1.0F : scale[r];
    const float* from = in + r * ld_in;
    std::int64_t c = 0;
    if (dtype == c10::ScalarType::Float) {
      float* to = static_cast<float*>(out) + r * ld_out;
      for (; c + kLanes <= cols; c += kLanes) {
        store(to + c, load(from + c) * factor);
      }
      for (; c < cols; ++c) {
        to[c] = from[c] * factor;
      }
    } else {
      auto* to = static_cast<std::uint16_t*>(out) + r * ld_out;
      for (; c + kLanes <= cols; c += kLanes) {
        *reinterpret_cast<UnalignedShortLanes*>(to + c) =
            __builtin_convertvector(to_bfloat16_bits(load(from + c) * factor), ShortLanes);
      }
      for (; c < cols; ++c) {
        to[c] = c10::BFloat16(from[c] * factor).x;
      }
    }
  }
}

HEDGEROW_CLONES void row_dots(const float* a,
                              std::int64_t ld_a,
                              const float* b,
                              std::int64_t ld_b,
                              std::int64_t rows,
                              std::int64_t cols,
                              float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    Lanes sum{};
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      sum += load(a + r * ld_a + c) * load(b + r * ld_b + c);
    }
    out[r] = sum_lanes(sum);
  }
}

HEDGEROW_CLONES void subtract(const float* y, std::int64_t count, float* x) {
  for (std::int64_t i = 0; i < count; i += kLanes) {
    store(x + i, load(x + i) - load(y + i));
  }
  for (std::int64_t i = count; i < padded(count); ++i) {
    x[i] = 0.0F;
  }
}

HEDGEROW_CLONES void scale_rows(const float* in,
                                std::int64_t ld_in,
                                const float* scale,
                                std::int64_t rows,
                                std::int64_t cols,
                                float* out,
                                std::int64_t ld_out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      store(out + r * ld_out + c, load(in + r * ld_in + c) * scale[r]);
    }
  }
}

HEDGEROW_CLONES void column_sums(const float* x,
                                 std::int64_t ld,
                                 std::int64_t rows,
                                 std::int64_t lanes,
                                 const float* weight,
                                 float* out,
                                 bool add) {
  for (std::int64_t c = 0; c < lanes; c += kLanes) {
    Lanes sum = add ? load(out + c) : Lanes{};
    for (std::int64_t r = 0; r < rows; ++r) {
      const Lanes value = load(x + r * ld + c);
      sum += weight == nullptr ? value : value * weight[r];
    }
    store(out + c, sum);
  }
}

HEDGEROW_CLONES void column_dots(const float* a,
                                 const float* b,
                                 std::int64_t ld,
                                 std::int64_t rows,
                                 std::int64_t lanes,
                                 float* out) {
  for (std::int64_t c = 0; c < lanes; c += kLanes) {
    Lanes sum{};
    for (std::int64_t r = 0; r < rows; ++r) {
      sum += load(a + r * ld + c) * load(b + r * ld + c);
    }
    store(out + c, sum);
  }
}

HEDGEROW_CLONES void add_outer(float* x,
                               std::int64_t ld,
                               std::int64_t rows,
                               std::int64_t lanes,
                               const float* weight,
                               const float* lane_values) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float factor = weight == nullptr ? 1.0F : weight[r];
    for (std::int64_t c = 0; c < lanes; c += kLanes) {
      store(x + r * ld + c, load(x + r * ld + c) + factor * load(lane_values + c));
    }
  }
}

HEDGEROW_CLONES void add_columns(
    float* x, std::int64_t ld, std::int64_t rows, std::int64_t lanes, const float* values) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < lanes; c += kLanes) {
      store(x + r * ld + c, load(x + r * ld + c) + values[r]);
    }
  }
}

HEDGEROW_CLONES void add_row_sums(const float* x,
                                  std::int64_t ld,
                                  std::int64_t rows,
                                  std::int64_t count,
                                  const float* lane_values,
                                  float* out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x + r * ld;
    Lanes sum{};
    std::int64_t c = 0;
    for (; c + kLanes <= count; c += kLanes) {
      sum += lane_values == nullptr ? load(row + c) : load(row + c) * load(lane_values + c);
    }
    float total = sum_lanes(sum);
    for (; c < count; ++c) {
      total += lane_values == nullptr ? row[c] : row[c] * lane_values[c];
    }
    out[r] += total;
  }
}

}  // namespace hedgerow::kernels::cpu
