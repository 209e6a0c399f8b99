// Loops that the compiler vectorises; see worker/model/row_math.hpp.
#include "worker/finetune/backward_ops_cpu.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "worker/model/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

constexpr std::int64_t kMaxHeadDim = 1024;

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

// With r = 1 / rms(x): out = residual + r w dy - x r^3 mean(w dy x). `wide` is room for a row.
template <typename T>
HEDGEROW_INLINE void norm_row(const T* __restrict residual,
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
HEDGEROW_INLINE void swiglu_row(const T* __restrict dy,
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

template <typename T>
HEDGEROW_INLINE void add_row(T* __restrict y,
                             const float* __restrict update,
                             float scale,
                             std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) narrow(widen(y[i]) + scale * update[i], y[i]);
}

// -log softmax(x)[token]; out = scale (softmax(x) - one-hot) unless it is null.
template <typename T>
HEDGEROW_INLINE float cross_entropy_row(
    const T* __restrict x, std::int64_t token, float scale, T* __restrict out, std::int64_t size) {
  float lanes[kLanes];
  for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = widen(x[0]);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      const float value = widen(x[i + j]);
      lanes[j] = value > lanes[j] ? value : lanes[j];
    }
  }
  float top = lanes[0];
  for (std::int64_t j = 1; j < kLanes; ++j) top = lanes[j] > top ? lanes[j] : top;
  for (; i < size; ++i) top = widen(x[i]) > top ? widen(x[i]) : top;
  for (float& lane : lanes) lane = 0.0F;
  for (i = 0; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += exponential(widen(x[i + j]) - top);
  }
  for (; i < size; ++i) lanes[i % kLanes] += exponential(widen(x[i]) - top);
  const float sum = sum_lanes(lanes);
  const float loss = std::log(sum) + top - widen(x[token]);
  if (out != nullptr) {
    const float share = scale / sum;
    for (i = 0; i < size; ++i) narrow(share * exponential(widen(x[i]) - top), out[i]);
    narrow(share * exponential(widen(x[token]) - top) - scale, out[token]);
  }
  return loss;
}

// The largest of x, whose values go to `wide`.
template <typename T>
HEDGEROW_INLINE float widen_row(const T* __restrict x, float* __restrict wide, std::int64_t size) {
  float lanes[kLanes];
  for (float& lane : lanes) lane = widen(x[0]);
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      const float value = widen(x[i + j]);
      wide[i + j] = value;
      lanes[j] = value > lanes[j] ? value : lanes[j];
    }
  }
  for (; i < size; ++i) {
    wide[i] = widen(x[i]);
    lanes[0] = wide[i] > lanes[0] ? wide[i] : lanes[0];
  }
  float top = lanes[0];
  for (std::int64_t j = 1; j < kLanes; ++j) top = lanes[j] > top ? lanes[j] : top;
  return top;
}

// The teacher of one row.
struct TeacherRow {
  const std::int32_t* ids;
  const float* log_p;
  float log_rest;
  std::int64_t top_k;
};

struct RowLoss {
  float ce = 0.0F, kl = 0.0F;
};

// TeacherLoss of one row; out unless it is null. `wide` is room for a row, `chosen` for K values:
// e^(x - max) of the rest stays in the one, of the teacher's top in the other, so that the rest's
// sum is no difference of large numbers.
template <typename T>
HEDGEROW_INLINE RowLoss teacher_row(const T* __restrict x,
                                    std::int64_t token,
                                    const TeacherRow& teacher,
                                    float ce_weight,
                                    float kl_weight,
                                    float scale,
                                    T* __restrict out,
                                    std::int64_t size,
                                    float* __restrict wide,
                                    float* __restrict chosen) {
  const float top = widen_row(x, wide, size);
  for (std::int64_t k = 0; k < teacher.top_k; ++k) wide[teacher.ids[k]] = top - 100.0F;
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) {
      const float value = wide[i + j] - top;
      wide[i + j] = value < -87.0F ? 0.0F : exponential(value);
      lanes[j] += wide[i + j];
    }
  }
  for (; i < size; ++i) {
    const float value = wide[i] - top;
    wide[i] = value < -87.0F ? 0.0F : exponential(value);
    lanes[i % kLanes] += wide[i];
  }
  const float rest = sum_lanes(lanes);
  float total = rest;
  for (std::int64_t k = 0; k < teacher.top_k; ++k) {
    chosen[k] = exponential(widen(x[teacher.ids[k]]) - top);
    total += chosen[k];
  }
  const float normalizer = std::log(total) + top;
  RowLoss loss;
  loss.ce = normalizer - widen(x[token]);
  for (std::int64_t k = 0; k < teacher.top_k; ++k) {
    const float p = exponential(teacher.log_p[k]);
    loss.kl += p * (teacher.log_p[k] - (widen(x[teacher.ids[k]]) - normalizer));
  }
  const bool has_rest = teacher.log_rest > -87.0F && rest > 0.0F;
  const float p_rest = has_rest ? exponential(teacher.log_rest) : 0.0F;
  if (has_rest) loss.kl += p_rest * (teacher.log_rest - (std::log(rest) + top - normalizer));
  if (out == nullptr) return loss;
  const float share = scale * (ce_weight + kl_weight) / total;
  const float rest_share = has_rest ? share - scale * kl_weight * p_rest / rest : share;
  for (i = 0; i < size; ++i) narrow(rest_share * wide[i], out[i]);
  const float hit = scale * ce_weight;
  narrow(rest_share * wide[token] - hit, out[token]);
  for (std::int64_t k = 0; k < teacher.top_k; ++k) {
    const std::int64_t id = teacher.ids[k];
    const float gradient = share * chosen[k] - scale * kl_weight * exponential(teacher.log_p[k]);
    narrow(id == token ? gradient - hit : gradient, out[id]);
  }
  return loss;
}

// One entry per element type, because a template cannot be cloned.
#define HEDGEROW_ROWS(T)                                                                         \
  HEDGEROW_CLONES void norm_rows(const T* residual,                                              \
                                 const T* dy,                                                    \
                                 const float* low_rank,                                          \
                                 const T* x,                                                     \
                                 const float* weight,                                            \
                                 float* wide,                                                    \
                                 T* out,                                                         \
                                 std::int64_t rows,                                              \
                                 std::int64_t m,                                                 \
                                 float eps) {                                                    \
    for (std::int64_t at = 0; at < rows * m; at += m) {                                          \
      norm_row(residual + at,                                                                    \
               dy + at,                                                                          \
               low_rank == nullptr ? nullptr : low_rank + at,                                    \
               x + at,                                                                           \
               weight,                                                                           \
               wide,                                                                             \
               out + at,                                                                         \
               m,                                                                                \
               eps);                                                                             \
    }                                                                                            \
  }                                                                                              \
  HEDGEROW_CLONES void swiglu_rows(                                                              \
      const T* dy, const T* x, T* out, std::int64_t rows, std::int64_t m) {                      \
    for (std::int64_t r = 0; r < rows; ++r) {                                                    \
      const std::int64_t at = 2 * r * m;                                                         \
      swiglu_row(dy + r * m, x + at, x + at + m, out + at, out + at + m, m);                     \
    }                                                                                            \
  }                                                                                              \
  HEDGEROW_CLONES void head(const T* dy,                                                         \
                            const float* norm,                                                   \
                            const T* x,                                                          \
                            float eps,                                                           \
                            const float* cos,                                                    \
                            const float* sin,                                                    \
                            T* out,                                                              \
                            std::int64_t dim) {                                                  \
    head_row(dy, norm, x, eps, cos, sin, out, dim);                                              \
  }                                                                                              \
  HEDGEROW_CLONES void add_rows(T* y,                                                            \
                                std::int64_t stride,                                             \
                                const float* update,                                             \
                                std::int64_t rows,                                               \
                                std::int64_t m,                                                  \
                                float scale) {                                                   \
    for (std::int64_t r = 0; r < rows; ++r) add_row(y + r * stride, update + r * m, scale, m);   \
  }                                                                                              \
  HEDGEROW_CLONES float cross_entropy_one(                                                       \
      const T* x, std::int64_t token, float scale, T* out, std::int64_t size) {                  \
    return cross_entropy_row(x, token, scale, out, size);                                        \
  }                                                                                              \
  HEDGEROW_CLONES RowLoss teacher_one(const T* x,                                                \
                                      std::int64_t token,                                        \
                                      const TeacherRow& teacher,                                 \
                                      float ce_weight,                                           \
                                      float kl_weight,                                           \
                                      float scale,                                               \
                                      T* out,                                                    \
                                      std::int64_t size,                                         \
                                      float* wide,                                               \
                                      float* chosen) {                                           \
    return teacher_row(x, token, teacher, ce_weight, kl_weight, scale, out, size, wide, chosen); \
  }
HEDGEROW_ROWS(float)
HEDGEROW_ROWS(bf16)
#undef HEDGEROW_ROWS

const float* floats_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

}  // namespace

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
    norm_rows(data<T>(residual_gradient) + at,
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

at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  const std::int64_t m = output_gradient.size(-1);
  at::Tensor out = at::empty_like(gate_up);
  for_rows(
      gate_up, output_gradient.numel() / m, [&](std::int64_t first, std::int64_t count, auto tag) {
        using T = decltype(tag);
        swiglu_rows(data<T>(output_gradient) + first * m,
                    data<T>(gate_up) + 2 * first * m,
                    data<T>(out) + 2 * first * m,
                    count,
                    m);
      });
  return out;
}

at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const at::Tensor& cos,
                                const at::Tensor& sin,
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
      const float* c = cos.const_data_ptr<float>() + t * dim;
      const float* s = sin.const_data_ptr<float>() + t * dim;
      const auto rotated = [&](const at::Tensor& from, std::int64_t heads, const float* norm) {
        for (std::int64_t h = 0; h < heads; ++h, to += dim, x += dim) {
          head(data<T>(from) + ((b * heads + h) * tokens + t) * dim, norm, x, eps, c, s, to, dim);
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

void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale) {
  const std::int64_t stride = y.size(-1), m = update.size(-1);
  for_rows(y, y.numel() / stride, [&](std::int64_t row, std::int64_t count, auto tag) {
    using T = decltype(tag);
    add_rows(data<T>(y) + row * stride + first,
             stride,
             update.const_data_ptr<float>() + row * m,
             count,
             m,
             static_cast<float>(scale));
  });
}

CrossEntropy cross_entropy(const at::Tensor& logits,
                           const at::Tensor& tokens,
                           double scale,
                           bool with_gradient) {
  const std::int64_t rows = logits.size(0), size = logits.size(1);
  CrossEntropy result;
  if (with_gradient) result.gradient = at::empty_like(logits);
  std::vector<float> losses(static_cast<std::size_t>(rows));
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    const auto run = [&](auto tag) {
      using T = decltype(tag);
      for (std::int64_t r = begin; r < end; ++r) {
        T* out = with_gradient ? data<T>(result.gradient) + r * size : nullptr;
        losses[static_cast<std::size_t>(r)] = cross_entropy_one(
            data<T>(logits) + r * size, token[r], static_cast<float>(scale), out, size);
      }
    };
    if (logits.scalar_type() == at::kFloat) {
      run(float{});
    } else {
      run(bf16{});
    }
  });
  // In row order, whatever the threads.
  for (const float loss : losses) result.loss_sum += loss;
  return result;
}

TeacherLoss teacher_loss(const at::Tensor& logits,
                         const at::Tensor& tokens,
                         const TopLogits& teacher,
                         const LossWeights& weights,
                         double scale,
                         bool with_gradient) {
  const std::int64_t rows = logits.size(0), size = logits.size(1);
  const std::int64_t top_k = teacher.ids.size(1);
  TeacherLoss result;
  if (with_gradient) result.gradient = at::empty_like(logits);
  std::vector<RowLoss> losses(static_cast<std::size_t>(rows));
  const auto* token = tokens.const_data_ptr<std::int64_t>();
  at::parallel_for(0, rows, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> wide(static_cast<std::size_t>(size));
    std::vector<float> chosen(static_cast<std::size_t>(top_k));
    const auto run = [&](auto tag) {
      using T = decltype(tag);
      for (std::int64_t r = begin; r < end; ++r) {
        const TeacherRow row{teacher.ids.const_data_ptr<std::int32_t>() + r * top_k,
                             teacher.log_probabilities.const_data_ptr<float>() + r * top_k,
                             teacher.log_rest.const_data_ptr<float>()[r],
                             top_k};
        losses[static_cast<std::size_t>(r)] =
            teacher_one(data<T>(logits) + r * size,
                        token[r],
                        row,
                        static_cast<float>(weights.ce),
                        static_cast<float>(weights.kl),
                        static_cast<float>(scale),
                        with_gradient ? data<T>(result.gradient) + r * size : nullptr,
                        size,
                        wide.data(),
                        chosen.data());
      }
    };
    if (logits.scalar_type() == at::kFloat) {
      run(float{});
    } else {
      run(bf16{});
    }
  });
  for (const RowLoss& loss : losses) {
    result.ce_sum += loss.ce;
    result.kl_sum += loss.kl;
  }
  return result;
}

}  // namespace hedgerow::worker::cpu
