// kernels/cuda/tile/warp.cuh for the host: every CUDA thread is a fiber, and the collective
// functions compute what PTX specifies once all lanes have reached them. threadblock.hpp runs a
// kernel.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tests/kernels/emulation/threadblock.hpp"

#define HEDGEROW_TILE inline
#define HEDGEROW_UNROLL
#define HEDGEROW_NO_UNROLL
#define HEDGEROW_UNROLL_TWICE

namespace hedgerow::kernels::cuda {

using Bf16 = std::uint16_t;
using Word = std::uint32_t;

inline int thread() { return emulation::current_thread(); }
inline int lane() { return thread() % 32; }
inline int warp() { return thread() / 32; }

inline void sync_threads() { emulation::wait_for_threadblock(); }
inline void sync_warp() { emulation::wait_for_warp("sync_warp", nullptr, nullptr); }

float shuffle_xor(float x, int mask);

inline float unpack(Bf16 bits) {
  const Word wide = static_cast<Word>(bits) << 16;
  float x;
  std::memcpy(&x, &wide, sizeof x);
  return x;
}
Bf16 round_to_bf16(float x);  // nearest even; a NaN stays one
inline Word pack(float low, float high) {
  return round_to_bf16(low) | (static_cast<Word>(round_to_bf16(high)) << 16);
}

inline float power_of_two(float x) {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0F : y;  // .ftz
}
inline float log_two(float x) {
  return x < std::numeric_limits<float>::min() && x >= 0.0F  // .ftz
             ? -std::numeric_limits<float>::infinity()
             : std::log2(x);
}
inline float minus_infinity() { return -std::numeric_limits<float>::infinity(); }

void multiply_add(float (&c)[4], const Word (&a)[4], Word b0, Word b1);
void load_matrices(Word (&r)[4], const Bf16* row);
void load_matrices_transposed(Word (&r)[4], const Bf16* row);

// The copy is made when it is waited for, as late as the hardware may make it: what reads too early
// finds NaN.
void copy_async(Bf16* shared, const Bf16* global, bool inside);
void commit_copies();
void wait_for_copies_until(int pending);
template <int kPending>
void wait_for_copies() {
  wait_for_copies_until(kPending);
}

}  // namespace hedgerow::kernels::cuda
