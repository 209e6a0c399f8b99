// Loops that the compiler vectorises; see row_math.hpp.
#include "worker/model/elementwise_cpu.hpp"

#include <ATen/ATen.h>

#include <cstring>

#include "worker/model/row_math.hpp"

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
HEDGEROW_INLINE void rotate_row(const T* __restrict x,
                                const float* __restrict cos,
                                const float* __restrict sin,
                                T* __restrict out,
                                std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = widen(x[i]);
    const float high = widen(x[i + half]);
    narrow(low * cos[i] - high * sin[i], out[i]);
    narrow(high * cos[i] + low * sin[i], out[i + half]);
  }
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
  HEDGEROW_CLONES void swiglu_rows(const T* x, T* out, std::int64_t rows, std::int64_t m) { \
    for (std::int64_t r = 0; r < rows; ++r)                                                 \
      swiglu_row(x + 2 * r * m, x + (2 * r + 1) * m, out + r * m, m);                       \
  }                                                                                         \
  HEDGEROW_CLONES void rotate_head(const T* x,                                              \
                                   const float* norm,                                       \
                                   float eps,                                               \
                                   const float* cos,                                        \
                                   const float* sin,                                        \
                                   T* out,                                                  \
                                   std::int64_t dim) {                                      \
    if (norm == nullptr) {                                                                  \
      rotate_row(x, cos, sin, out, dim / 2);                                                \
    } else {                                                                                \
      float normed[kMaxHeadDim];                                                            \
      const float scale = inverse_rms(x, dim, eps);                                         \
      for (std::int64_t i = 0; i < dim; ++i) normed[i] = widen(x[i]) * scale * norm[i];     \
      rotate_floats(normed, cos, sin, out, dim / 2);                                        \
    }                                                                                       \
  }
constexpr std::int64_t kMaxHeadDim = 1024;
template <typename T>
HEDGEROW_INLINE void rotate_floats(const float* __restrict x,
                                   const float* __restrict cos,
                                   const float* __restrict sin,
                                   T* __restrict out,
                                   std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    narrow(x[i] * cos[i] - x[i + half] * sin[i], out[i]);
    narrow(x[i + half] * cos[i] + x[i] * sin[i], out[i + half]);
  }
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

const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
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

Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const at::Tensor& cos,
                const at::Tensor& sin,
                const HeadNorms& norms) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1),
                     heads = num_heads + 2 * num_kv_heads;
  const std::int64_t dim = qkv.size(2) / heads;
  TORCH_CHECK(dim % 2 == 0 && dim <= kMaxHeadDim,
              "head_dim must be even and at most ",
              kMaxHeadDim,
              ", got ",
              dim);
  TORCH_CHECK(
      cos.size(0) == tokens && cos.size(1) == dim && cos.is_contiguous() && sin.is_contiguous(),
      "rotary table ",
      cos.sizes(),
      " does not fit ",
      tokens,
      " tokens of head_dim ",
      dim);
  const float eps = static_cast<float>(norms.eps);
  Qkv out{at::empty({batch, num_heads, tokens, dim}, qkv.options()),
          at::empty({batch, num_kv_heads, tokens, dim}, qkv.options()),
          at::empty({batch, num_kv_heads, tokens, dim}, qkv.options())};
  for_rows(qkv, batch * tokens, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t b = row / tokens, t = row % tokens;
      const T* in = data<T>(qkv) + row * heads * dim;
      const float* c = cos.const_data_ptr<float>() + t * dim;
      const float* s = sin.const_data_ptr<float>() + t * dim;
      for (std::int64_t h = 0; h < num_heads; ++h, in += dim) {
        rotate_head(in,
                    floats_or_null(norms.q),
                    eps,
                    c,
                    s,
                    data<T>(out.q) + ((b * num_heads + h) * tokens + t) * dim,
                    dim);
      }
      for (std::int64_t g = 0; g < num_kv_heads; ++g, in += dim) {
        rotate_head(in,
                    floats_or_null(norms.k),
                    eps,
                    c,
                    s,
                    data<T>(out.k) + ((b * num_kv_heads + g) * tokens + t) * dim,
                    dim);
      }
      for (std::int64_t g = 0; g < num_kv_heads; ++g, in += dim) {
        std::memcpy(data<T>(out.v) + ((b * num_kv_heads + g) * tokens + t) * dim,
                    in,
                    static_cast<std::size_t>(dim) * sizeof(T));
      }
    }
  });
  return out;
}

}  // namespace hedgerow::worker::cpu
