// Loops that the compiler vectorises; see row_math.hpp.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "worker/model/layer/cpu_rows.hpp"
#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;

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

template <typename T, typename Out>
HEDGEROW_INLINE void rotate_back_row(const T* __restrict dy,
                                     const float* __restrict cos,
                                     const float* __restrict sin,
                                     Out* __restrict out,
                                     std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = widen(dy[i]);
    const float high = widen(dy[i + half]);
    narrow(low * cos[i] + high * sin[i], out[i]);
    narrow(high * cos[i] - low * sin[i], out[i + half]);
  }
}

// One head of one token: back through the rotation and, where there is one, the head's norm.
template <typename T>
HEDGEROW_INLINE void head_row(const T* dy,
                              const float* norm,
                              const T* x,
                              float eps,
                              const float* cos,
                              const float* sin,
                              T* out,
                              std::int64_t dim) {
  if (norm == nullptr) {
    rotate_back_row(dy, cos, sin, out, dim / 2);
    return;
  }
  float rotated[kMaxHeadDim];
  rotate_back_row(dy, cos, sin, rotated, dim / 2);
  const float r = inverse_rms(x, dim, eps);
  const float along = r * r * r * weighted_dot(rotated, norm, x, dim) / static_cast<float>(dim);
  for (std::int64_t i = 0; i < dim; ++i)
    narrow(r * norm[i] * rotated[i] - along * widen(x[i]), out[i]);
}

// One entry per element type, because a template cannot be cloned.
#define HEDGEROW_ROWS(T)                                                                \
  HEDGEROW_CLONES void rotate_head(const T* x,                                          \
                                   const float* norm,                                   \
                                   float eps,                                           \
                                   const float* cos,                                    \
                                   const float* sin,                                    \
                                   T* out,                                              \
                                   std::int64_t dim) {                                  \
    if (norm == nullptr) {                                                              \
      rotate_row(x, cos, sin, out, dim / 2);                                            \
    } else {                                                                            \
      float normed[kMaxHeadDim];                                                        \
      const float scale = inverse_rms(x, dim, eps);                                     \
      for (std::int64_t i = 0; i < dim; ++i) normed[i] = widen(x[i]) * scale * norm[i]; \
      rotate_floats(normed, cos, sin, out, dim / 2);                                    \
    }                                                                                   \
  }                                                                                     \
  HEDGEROW_CLONES void rotate_head_back(const T* dy,                                    \
                                        const float* norm,                              \
                                        const T* x,                                     \
                                        float eps,                                      \
                                        const float* cos,                               \
                                        const float* sin,                               \
                                        T* out,                                         \
                                        std::int64_t dim) {                             \
    head_row(dy, norm, x, eps, cos, sin, out, dim);                                     \
  }
HEDGEROW_ROWS(float)
HEDGEROW_ROWS(bf16)
#undef HEDGEROW_ROWS

}  // namespace

Qkv split_heads(const at::Tensor& qkv,
                std::int64_t num_heads,
                std::int64_t num_kv_heads,
                const RopeTable& rope,
                const HeadNorms& norms) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1),
                     heads = num_heads + 2 * num_kv_heads;
  const std::int64_t dim = qkv.size(2) / heads;
  TORCH_CHECK(dim % 2 == 0 && dim <= kMaxHeadDim,
              "head_dim must be even and at most ",
              kMaxHeadDim,
              ", got ",
              dim);
  TORCH_CHECK(rope.cos.size(0) == tokens && rope.cos.size(1) == dim && rope.cos.is_contiguous() &&
                  rope.sin.is_contiguous(),
              "rotary table ",
              rope.cos.sizes(),
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
      const float* c = rope.cos.const_data_ptr<float>() + t * dim;
      const float* s = rope.sin.const_data_ptr<float>() + t * dim;
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

at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const RopeTable& rope,
                                const HeadNorms& norms) {
  const std::int64_t batch = gradient.q.size(0), tokens = gradient.q.size(2),
                     dim = gradient.q.size(3);
  const std::int64_t num_heads = gradient.q.size(1), num_kv_heads = gradient.k.size(1);
  const std::int64_t width = (num_heads + 2 * num_kv_heads) * dim;
  TORCH_CHECK(dim % 2 == 0 && dim <= kMaxHeadDim,
              "head_dim must be even and at most ",
              kMaxHeadDim,
              ", got ",
              dim);
  const auto eps = static_cast<float>(norms.eps);
  at::Tensor out = at::empty({batch, tokens, width}, gradient.q.options());
  for_rows(out, batch * tokens, [&](std::int64_t first, std::int64_t count, auto tag) {
    using T = decltype(tag);
    for (std::int64_t row = first; row < first + count; ++row) {
      const std::int64_t b = row / tokens, t = row % tokens;
      T* to = data<T>(out) + row * width;
      const T* x = qkv.defined() ? data<T>(qkv) + row * width : to;
      const float* c = rope.cos.const_data_ptr<float>() + t * dim;
      const float* s = rope.sin.const_data_ptr<float>() + t * dim;
      const auto rotated = [&](const at::Tensor& from, std::int64_t heads, const float* norm) {
        for (std::int64_t h = 0; h < heads; ++h, to += dim, x += dim) {
          rotate_head_back(
              data<T>(from) + ((b * heads + h) * tokens + t) * dim, norm, x, eps, c, s, to, dim);
        }
      };
      rotated(gradient.q, num_heads, floats_or_null(norms.q));
      rotated(gradient.k, num_kv_heads, floats_or_null(norms.k));
      for (std::int64_t g = 0; g < num_kv_heads; ++g, to += dim) {
        const T* from = data<T>(gradient.v) + ((b * num_kv_heads + g) * tokens + t) * dim;
        std::copy_n(from, dim, to);
      }
    }
  });
  return out;
}

}  // namespace hedgerow::worker::cpu
