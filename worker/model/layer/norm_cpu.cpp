// Loops that the compiler vectorises; see row_math.hpp.
#include <ATen/ATen.h>

#include <vector>

#include "worker/model/layer/cpu_rows.hpp"
#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

template <typename T>
HEDGEROW_INLINE void norm_row(const T* __restrict x,
                              const float* __restrict weight,
                              T* __restrict out,
                              std::int64_t size,
                              float eps) {
  const float scale = inverse_rms(x, size, eps);
  for (std::int64_t i = 0; i < size; ++i) narrow(widen(x[i]) * scale * weight[i], out[i]);
}

template <typename T>
HEDGEROW_INLINE void add_row(const T* __restrict a,
                             const T* __restrict b,
                             T* __restrict out,
                             std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) narrow(widen(a[i]) + widen(b[i]), out[i]);
}

// With r = 1 / rms(x): out = residual + r w dy - x r^3 mean(w dy x). `wide` is room for a row.
template <typename T>
HEDGEROW_INLINE void norm_gradient_row(const T* __restrict residual,
                                       const T* __restrict dy,
                                       const float* __restrict low_rank,
                                       const T* __restrict x,
                                       const float* __restrict weight,
                                       float* __restrict wide,
                                       T* __restrict out,
                                       std::int64_t size,
                                       float eps) {
  if (low_rank != nullptr) {
    for (std::int64_t i = 0; i < size; ++i) wide[i] = widen(dy[i]) + low_rank[i];
  } else {
    for (std::int64_t i = 0; i < size; ++i) wide[i] = widen(dy[i]);
  }
  const float r = inverse_rms(x, size, eps);
  const float along = r * r * r * weighted_dot(wide, weight, x, size) / static_cast<float>(size);
  for (std::int64_t i = 0; i < size; ++i) {
    narrow(widen(residual[i]) + (r * weight[i] * wide[i] - along * widen(x[i])), out[i]);
  }
}

template <typename T>
HEDGEROW_INLINE void add_scaled_row(T* __restrict y,
                                    const float* __restrict update,
                                    float scale,
                                    std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) narrow(widen(y[i]) + scale * update[i], y[i]);
}

// One entry per element type, because a template cannot be cloned.
#define HEDGEROW_ROWS(T)                                                                    \
  HEDGEROW_CLONES void norm_rows(                                                           \
      const T* x, const float* w, T* out, std::int64_t rows, std::int64_t m, float eps) {   \
    for (std::int64_t r = 0; r < rows; ++r) norm_row(x + r * m, w, out + r * m, m, eps);    \
  }                                                                                         \
  HEDGEROW_CLONES void add_norm_rows(const T* a,                                            \
                                     const T* b,                                            \
                                     const float* w,                                        \
                                     T* sum,                                                \
                                     T* out,                                                \
                                     std::int64_t rows,                                     \
                                     std::int64_t m,                                        \
                                     float eps) {                                           \
    for (std::int64_t r = 0; r < rows; ++r) {                                               \
      add_row(a + r * m, b + r * m, sum + r * m, m);                                        \
      norm_row(sum + r * m, w, out + r * m, m, eps);                                        \
    }                                                                                       \
  }                                                                                         \
  HEDGEROW_CLONES void add_rows(                                                            \
      const T* __restrict a, const T* __restrict b, T* __restrict out, std::int64_t size) { \
    add_row(a, b, out, size);                                                               \
  }                                                                                         \
  HEDGEROW_CLONES void norm_gradient_rows(const T* residual,                                \
                                          const T* dy,                                      \
                                          const float* low_rank,                            \
                                          const T* x,                                       \
                                          const float* weight,                              \
                                          float* wide,                                      \
                                          T* out,                                           \
                                          std::int64_t rows,                                \
                                          std::int64_t m,                                   \
                                          float eps) {                                      \
    for (std::int64_t at = 0; at < rows * m; at += m) {                                     \
      norm_gradient_row(residual + at,                                                      \
                        dy + at,                                                            \
                        low_rank == nullptr ? nullptr : low_rank + at,                      \
                        x + at,                                                             \
                        weight,                                                             \
                        wide,                                                               \
                        out + at,                                                           \
                        m,                                                                  \
                        eps);                                                               \
    }                                                                                       \
  }                                                                                         \
  HEDGEROW_CLONES void add_scaled_rows(T* y,                                                \
                                       std::int64_t stride,                                 \
                                       const float* update,                                 \
                                       std::int64_t rows,                                   \
                                       std::int64_t m,                                      \
                                       float scale) {                                       \
    for (std::int64_t r = 0; r < rows; ++r)                                                 \
      add_scaled_row(y + r * stride, update + r * m, scale, m);                             \
  }
HEDGEROW_ROWS(float)
HEDGEROW_ROWS(bf16)
#undef HEDGEROW_ROWS

// fp32 values rounded to bf16 and back: the residual stream of an fp32 computation between layers.
HEDGEROW_CLONES void add_round_rows(const float* a, const float* b, float* out, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    bf16 rounded;
    narrow(a[i] + b[i], rounded);
    out[i] = widen(rounded);
  }
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const std::int64_t m = x.size(-1);
  at::Tensor out = at::empty_like(x);
  for_rows(x, x.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    norm_rows(data<T>(x) + first * m,
              weight.const_data_ptr<float>(),
              data<T>(out) + first * m,
              count,
              m,
              static_cast<float>(eps));
  });
  return out;
}

Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps) {
  const std::int64_t m = residual.size(-1);
  Normed out{at::empty_like(residual), at::empty_like(residual)};
  for_rows(residual, residual.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    const std::int64_t at = first * m;
    add_norm_rows(data<T>(residual) + at,
                  data<T>(update) + at,
                  weight.const_data_ptr<float>(),
                  data<T>(out.hidden_states) + at,
                  data<T>(out.normed) + at,
                  count,
                  m,
                  static_cast<float>(eps));
  });
  return out;
}

at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream) {
  const std::int64_t m = residual.size(-1);
  at::Tensor out = at::empty_like(residual);
  for_rows(residual, residual.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    const std::int64_t at = first * m;
    if constexpr (std::is_same_v<T, float>) {
      if (stream == at::kBFloat16) {
        add_round_rows(data<T>(residual) + at, data<T>(update) + at, data<T>(out) + at, count * m);
        return;
      }
    }
    add_rows(data<T>(residual) + at, data<T>(update) + at, data<T>(out) + at, count * m);
  });
  return out;
}

at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps) {
  const std::int64_t m = x.size(-1);
  at::Tensor out = at::empty_like(x);
  const float* low = floats_or_null(low_rank);
  for_rows(x, x.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    const std::int64_t at = first * m;
    std::vector<float> wide(static_cast<std::size_t>(m));
    norm_gradient_rows(data<T>(residual_gradient) + at,
                       data<T>(output_gradient) + at,
                       low == nullptr ? nullptr : low + at,
                       data<T>(x) + at,
                       weight.const_data_ptr<float>(),
                       wide.data(),
                       data<T>(out) + at,
                       count,
                       m,
                       static_cast<float>(eps));
  });
  return out;
}

void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale) {
  const std::int64_t stride = y.size(-1), m = update.size(-1);
  for_rows(y, y.numel() / stride, [&](std::int64_t row, std::int64_t count, auto tag) {
    using T = decltype(tag);
    add_scaled_rows(data<T>(y) + row * stride + first,
                    stride,
                    update.const_data_ptr<float>() + row * m,
                    count,
                    m,
                    static_cast<float>(scale));
  });
}

}  // namespace hedgerow::worker::cpu
