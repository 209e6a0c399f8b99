// Loops that the compiler vectorises; see worker/model/layer/row_math.hpp.
#include "worker/finetune/token_loss_cpu.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

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

}  // namespace

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
