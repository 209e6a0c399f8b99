// Sixteen floats at a time, for the *_cpu.cpp files of this folder: GCC's vector extension, so that
// one source serves every x86 level. A function marked HEDGEROW_CLONES is compiled for AVX-512,
// AVX2 and the baseline and chosen at load time; whatever it calls must be force-inlined
// (HEDGEROW_INLINE) to be compiled with it.
#pragma once

#include <cstdint>

#define HEDGEROW_INLINE __attribute__((always_inline)) inline
#define HEDGEROW_INLINE_LAMBDA __attribute__((always_inline))

// Sanitizers instrument the resolvers that target_clones makes, which run before the sanitizer's
// own start.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HEDGEROW_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=haswell", "default"), noinline))
#else
#define HEDGEROW_CLONES __attribute__((noinline))
#endif

namespace hedgerow::kernels::cpu {

inline constexpr std::int64_t kLanes = 16;

using Lanes = float __attribute__((vector_size(64)));
using IntLanes = std::int32_t __attribute__((vector_size(64)));
using UnalignedLanes = float __attribute__((vector_size(64), aligned(4), may_alias));

HEDGEROW_INLINE Lanes load(const float* p) { return *reinterpret_cast<const UnalignedLanes*>(p); }
HEDGEROW_INLINE void store(float* p, Lanes x) { *reinterpret_cast<UnalignedLanes*>(p) = x; }
HEDGEROW_INLINE Lanes splat(float x) { return Lanes{} + x; }
HEDGEROW_INLINE IntLanes lane_index() {
  return IntLanes{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
}
// The larger of both; a NaN in x is passed over (the exponential brings it back), one in m stays.
HEDGEROW_INLINE Lanes larger(Lanes x, Lanes m) { return x > m ? x : m; }
HEDGEROW_INLINE Lanes smaller(Lanes x, Lanes m) { return x < m ? x : m; }

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

// Sums in a fixed order: halves, quarters, ..., so the result does not depend on the instruction
// set.
HEDGEROW_INLINE float sum_lanes(Lanes x) {
  float parts[kLanes];
  store(parts, x);
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t i = 0; i < width; ++i) {
      parts[i] += parts[i + width];
    }
  }
  return parts[0];
}

// exp(x) for x <= 88.7, relative error < 2e-7; exactly 0 below -87.3 (no denormals), exactly 1 at
// 0, NaN for NaN. x = n ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series to r^7 (remainder
// 6e-9); 2^n through the exponent bits.
HEDGEROW_INLINE Lanes exp_lanes(Lanes x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;  // 9 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound =
      12582912.0F;  // 1.5 * 2^23: adding it leaves n in the low bits of the mantissa
  constexpr float kUnderflow = -87.3F;
  const Lanes shifted = x * kLog2E + kRound;
  const Lanes n = shifted - kRound;
  const Lanes r = (x - n * kLn2High) - n * kLn2Low;
  Lanes series = splat(1.0F / 5040.0F);
  series = series * r + 1.0F / 720.0F;
  series = series * r + 1.0F / 120.0F;
  series = series * r + 1.0F / 24.0F;
  series = series * r + 1.0F / 6.0F;
  series = series * r + 0.5F;
  series = series * r + 1.0F;
  series = series * r + 1.0F;
  // Unsigned: below the underflow the sum wraps, and is dropped.
  const UnsignedLanes exponent = reinterpret_cast<UnsignedLanes>(shifted) << 23;
  const Lanes power = reinterpret_cast<Lanes>(reinterpret_cast<UnsignedLanes>(series) + exponent);
  const Lanes bounded = x < kUnderflow ? Lanes{} : power;
  return x != x ? x : bounded;
}

// exp(x) for any x: infinity where fp32 has no value for it.
HEDGEROW_INLINE Lanes exp_lanes_any(Lanes x) {
  constexpr float kOverflow = 88.72283F;
  const Lanes e = exp_lanes(x);
  return x > kOverflow ? Lanes{} + __builtin_inff() : e;
}

// Natural logarithm of a normal positive x, relative error < 2e-7; NaN for NaN.
// x = 2^e m, m in [sqrt(1/2), sqrt(2)); with t = (m - 1) / (m + 1), log m = 2 (t + t^3 / 3 + ... +
// t^9 / 9).
HEDGEROW_INLINE Lanes log_lanes(Lanes x) {
  constexpr float kLn2 = 0.693147180559945309F;
  constexpr float kSqrt2 = 1.41421356237309505F;
  const IntLanes bits = reinterpret_cast<IntLanes>(x);
  const Lanes mantissa = reinterpret_cast<Lanes>((bits & 0x007fffff) | 0x3f800000);
  const IntLanes upper = mantissa > kSqrt2;
  const Lanes m = upper != 0 ? mantissa * 0.5F : mantissa;
  const Lanes e = __builtin_convertvector((bits >> 23) - 127 - upper, Lanes);
  const Lanes t = (m - 1.0F) / (m + 1.0F), square = t * t;
  Lanes series = splat(2.0F / 9.0F);
  series = series * square + 2.0F / 7.0F;
  series = series * square + 2.0F / 5.0F;
  series = series * square + 2.0F / 3.0F;
  series = series * square + 2.0F;
  const Lanes result = e * kLn2 + series * t;
  return x != x ? x : result;
}

}  // namespace hedgerow::kernels::cpu
