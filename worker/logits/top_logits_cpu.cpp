// Loops that the compiler vectorises; see worker/model/layer/row_math.hpp.
#include "worker/logits/top_logits_cpu.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "worker/model/layer/row_math.hpp"

namespace hedgerow::worker::cpu {
namespace {

// Groups a kept logit: more of them bring the threshold nearer to the K-th logit.
constexpr std::int64_t kGroupsPerKept = 4;

HEDGEROW_CLONES void group_maxima(const float* x,
                                  std::int64_t size,
                                  std::int64_t group,
                                  float* maxima) {
  for (std::int64_t begin = 0; begin < size; begin += group) {
    const std::int64_t end = begin + group < size ? begin + group : size;
    float lanes[kLanes];
    for (float& lane : lanes) lane = x[begin];
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t j = 0; j < kLanes; ++j)
        lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
    }
    for (; i < end; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
    float top = lanes[0];
    for (std::int64_t j = 1; j < kLanes; ++j) top = lanes[j] > top ? lanes[j] : top;
    *maxima++ = top;
  }
}

HEDGEROW_CLONES float sum_of_exponentials(const float* x, std::int64_t size, float top) {
  float lanes[kLanes] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] += exponential(x[i + j] - top);
  }
  for (; i < size; ++i) lanes[i % kLanes] += exponential(x[i] - top);
  return sum_lanes(lanes);
}

// One thread's room for rows of V logits.
class RowSelector {
 public:
  RowSelector(std::int64_t vocab_size, std::int64_t top_k)
      : size_(vocab_size),
        top_k_(top_k),
        group_(std::max<std::int64_t>(1, vocab_size / (kGroupsPerKept * top_k))),
        maxima_(static_cast<std::size_t>((vocab_size + group_ - 1) / group_)) {}

  void select(const float* x, std::int32_t* ids, float* log_probabilities, float* log_rest) {
    group_maxima(x, size_, group_, maxima_.data());
    collect(x, threshold());
    const auto above = [x](std::int32_t a, std::int32_t b) {
      return x[a] != x[b] ? x[a] > x[b] : a < b;
    };
    const auto last = kept_.begin() + top_k_;
    std::nth_element(kept_.begin(), last - 1, kept_.end(), above);
    std::sort(kept_.begin(), last, above);
    const float top = x[kept_.front()];
    rest_.assign(x, x + size_);
    for (auto id = kept_.begin(); id != last; ++id)
      rest_[static_cast<std::size_t>(*id)] = -std::numeric_limits<float>::infinity();
    double total = top_k_ == size_ ? 0.0 : sum_of_exponentials(rest_.data(), size_, top);
    // exponential() never gives less than e^-87, which is nothing beside the largest of 1.
    *log_rest =
        total > 0.0 ? static_cast<float>(std::log(total)) : -std::numeric_limits<float>::infinity();
    for (auto id = kept_.begin(); id != last; ++id) total += std::exp(double{x[*id]} - top);
    const auto normalizer = static_cast<float>(std::log(total));
    *log_rest -= normalizer;
    for (std::int64_t i = 0; i < top_k_; ++i) {
      ids[i] = kept_[static_cast<std::size_t>(i)];
      log_probabilities[i] = x[ids[i]] - top - normalizer;
    }
  }

 private:
  // At least K logits are not below it: one in each of the K groups with the largest maxima.
  float threshold() {
    if (static_cast<std::int64_t>(maxima_.size()) < top_k_)
      return -std::numeric_limits<float>::infinity();
    order_ = maxima_;
    const auto kth = order_.begin() + top_k_ - 1;
    std::nth_element(order_.begin(), kth, order_.end(), std::greater<>());
    return *kth;
  }

  void collect(const float* x, float threshold) {
    kept_.clear();
    for (std::size_t group = 0; group < maxima_.size(); ++group) {
      if (!(maxima_[group] >= threshold)) continue;
      const std::int64_t begin = static_cast<std::int64_t>(group) * group_;
      for (std::int64_t i = begin; i < std::min(begin + group_, size_); ++i) {
        if (x[i] >= threshold) kept_.push_back(static_cast<std::int32_t>(i));
      }
    }
  }

  std::int64_t size_, top_k_, group_;
  std::vector<float> maxima_, order_, rest_;
  std::vector<std::int32_t> kept_;
};

}  // namespace

TopLogits top_logits(const at::Tensor& logits, int top_k) {
  const std::int64_t rows = logits.size(0), size = logits.size(1);
  const auto floats = at::TensorOptions(at::kFloat);
  TopLogits top{at::empty({rows, top_k}, floats.dtype(at::kInt)),
                at::empty({rows, top_k}, floats),
                at::empty({rows}, floats)};
  constexpr std::int64_t kGrainRows = 4;
  at::parallel_for(0, rows, kGrainRows, [&](std::int64_t begin, std::int64_t end) {
    RowSelector selector(size, top_k);
    for (std::int64_t row = begin; row < end; ++row) {
      selector.select(logits.const_data_ptr<float>() + row * size,
                      top.ids.mutable_data_ptr<std::int32_t>() + row * top_k,
                      top.log_probabilities.mutable_data_ptr<float>() + row * top_k,
                      top.log_rest.mutable_data_ptr<float>() + row);
    }
  });
  return top;
}

}  // namespace hedgerow::worker::cpu
