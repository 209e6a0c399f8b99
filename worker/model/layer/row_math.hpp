// What the row loops of worker/ share: bf16 as bits, the exponential, sums in a fixed order. For
// files built with -O3 (worker/CMakeLists.txt) whose row routines are cloned for AVX-512, AVX2 and
// the baseline, chosen when the program starts. Sums run in kLanes partial sums added in a fixed
// tree, so that the result is the same whatever the vector width.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <bit>
#include <cmath>
#include <cstdint>

// Clones need ifunc support, which sanitizers' early start-up breaks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HEDGEROW_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HEDGEROW_CLONES
#endif
#define HEDGEROW_INLINE inline __attribute__((always_inline))

namespace hedgerow::worker::cpu {

using bf16 =
    std::uint16_t;  // the bits of c10::BFloat16: plain integers vectorise, the class does not
inline constexpr std::int64_t kLanes = 16;

HEDGEROW_INLINE float widen(float x) { return x; }
HEDGEROW_INLINE float widen(bf16 x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}

HEDGEROW_INLINE void narrow(float x, float& out) { out = x; }
// Round to nearest even; a NaN keeps a set mantissa bit instead of carrying into infinity.
HEDGEROW_INLINE void narrow(float x, bf16& out) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16;
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  out = static_cast<bf16>(is_nan ? 0x7FC0U : rounded);
}

// e^x to 2 units in the last place: 2^n e^r, |r| <= ln2 / 2, Taylor series of degree 7. Clamped to
// where 2^n is a normal number; silu at the clamp is x or 0 to the last bit all the same.
HEDGEROW_INLINE float exponential(float x) {
  constexpr float kLog2E = 1.44269504F;
  constexpr float kLn2High = 0.693359375F;    // ln 2 with 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;  // ln 2 - kLn2High
  constexpr float kRound = 12582912.0F;       // 1.5 * 2^23: adding it rounds to an integer
  const float clamped = x < -87.0F ? -87.0F : (x > 87.0F ? 87.0F : x);
  const float n = (clamped * kLog2E + kRound) - kRound;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040;
  p = p * r + 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

HEDGEROW_INLINE float sum_lanes(float* lanes) {
  for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

template <typename T>
HEDGEROW_INLINE float inverse_rms(const T* x, std::int64_t size, float eps) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += widen(x[i + j]) * widen(x[i + j]);
  }
  for (; i < size; ++i) lanes[i % kLanes] += widen(x[i]) * widen(x[i]);
  return 1.0F / std::sqrt(sum_lanes(lanes) / static_cast<float>(size) + eps);
}

// sum_i weight_i dy_i x_i
template <typename D, typename T>
HEDGEROW_INLINE float weighted_dot(const D* __restrict dy,
                                   const float* __restrict weight,
                                   const T* __restrict x,
                                   std::int64_t size) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j)
      lanes[j] += widen(dy[i + j]) * weight[i + j] * widen(x[i + j]);
  }
  for (; i < size; ++i) lanes[i % kLanes] += widen(dy[i]) * weight[i] * widen(x[i]);
  return sum_lanes(lanes);
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

inline const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// body(first, count, type tag) over rows, in parallel; rows are cheap, so a thread takes at least
// some.
template <typename Body>
void for_rows(const at::Tensor& x, std::int64_t rows, const Body& body) {
  constexpr std::int64_t kGrainRows = 16;
  at::parallel_for(0, rows, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
    if (x.scalar_type() == at::kFloat) {
      body(begin, end - begin, float{});
    } else {
      body(begin, end - begin, bf16{});
    }
  });
}

}  // namespace hedgerow::worker::cpu
