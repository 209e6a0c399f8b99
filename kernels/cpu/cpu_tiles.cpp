#include "kernels/cpu/cpu_tiles.hpp"

#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_vector.hpp"

namespace hedgerow::kernels::cpu {
namespace {

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

HEDGEROW_CLONES void add_floats(const float* a, const float* b, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(out + i, load(a + i) + load(b + i));
  }
  for (; i < count; ++i) {
    out[i] = a[i] + b[i];
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
    for (std::int64_t first = 0; first < rows; first += kTermsPerRun) {
      Lanes run{};
      for (std::int64_t r = first; r < std::min(first + kTermsPerRun, rows); ++r) {
        const Lanes value = load(x + r * ld + c);
        run += weight == nullptr ? value : value * weight[r];
      }
      sum += run;
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
    for (std::int64_t first = 0; first < rows; first += kTermsPerRun) {
      Lanes run{};
      for (std::int64_t r = first; r < std::min(first + kTermsPerRun, rows); ++r) {
        run += load(a + r * ld + c) * load(b + r * ld + c);
      }
      sum += run;
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
