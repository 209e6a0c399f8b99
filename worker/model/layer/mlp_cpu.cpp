// Loops that the compiler vectorises; see row_math.hpp.
#include <ATen/ATen.h>

#include "worker/model/layer/cpu_rows.hpp"
#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

template <typename T>
HEDGEROW_INLINE void swiglu_row(const T* __restrict gate,
                                const T* __restrict up,
                                T* __restrict out,
                                std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float g = widen(gate[i]);
    narrow(g / (1.0F + exponential(-g)) * widen(up[i]), out[i]);
  }
}

template <typename T>
HEDGEROW_INLINE void swiglu_gradient_row(const T* __restrict dy,
                                         const T* __restrict gate,
                                         const T* __restrict up,
                                         T* __restrict dgate,
                                         T* __restrict dup,
                                         std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    const float g = widen(gate[i]);
    const float d = widen(dy[i]);
    const float sigmoid = 1.0F / (1.0F + exponential(-g));
    const float silu = g * sigmoid;
    narrow(d * widen(up[i]) * (sigmoid + silu * (1.0F - sigmoid)), dgate[i]);
    narrow(d * silu, dup[i]);
  }
}

// One entry per element type, because a template cannot be cloned.
#define HEDGEROW_ROWS(T)                                                                    \
  HEDGEROW_CLONES void swiglu_rows(const T* x, T* out, std::int64_t rows, std::int64_t m) { \
    for (std::int64_t r = 0; r < rows; ++r)                                                 \
      swiglu_row(x + 2 * r * m, x + (2 * r + 1) * m, out + r * m, m);                       \
  }                                                                                         \
  HEDGEROW_CLONES void swiglu_gradient_rows(                                                \
      const T* dy, const T* x, T* out, std::int64_t rows, std::int64_t m) {                 \
    for (std::int64_t r = 0; r < rows; ++r) {                                               \
      const std::int64_t at = 2 * r * m;                                                    \
      swiglu_gradient_row(dy + r * m, x + at, x + at + m, out + at, out + at + m, m);       \
    }                                                                                       \
  }
HEDGEROW_ROWS(float)
HEDGEROW_ROWS(bf16)
#undef HEDGEROW_ROWS

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  auto shape = gate_up.sizes().vec();
  shape.back() /= 2;
  const std::int64_t m = shape.back();
  at::Tensor out = at::empty(shape, gate_up.options());
  for_rows(
      gate_up, gate_up.numel() / (2 * m), [&](std::int64_t first, std::int64_t count, auto tag) {
        using T = decltype(tag);
        swiglu_rows(data<T>(gate_up) + 2 * first * m, data<T>(out) + first * m, count, m);
      });
  return out;
}

at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  const std::int64_t m = output_gradient.size(-1);
  at::Tensor out = at::empty_like(gate_up);
  for_rows(
      gate_up, output_gradient.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
        using T = decltype(tag);
        swiglu_gradient_rows(data<T>(output_gradient) + first * m,
                             data<T>(gate_up) + 2 * first * m,
                             data<T>(out) + 2 * first * m,
                             count,
                             m);
      });
  return out;
}

}  // namespace hedgerow::worker::cpu
