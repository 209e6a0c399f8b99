#include "kernels/cpu/hybrid_segments_cpu.hpp"

#include <ATen/ATen.h>

namespace hedgerow::kernels::cpu {
namespace {

// A pass that only sums, over the cost of the walk itself: projection and products of one side.
constexpr double kCostOfSums = 0.25;

}  // namespace

Segment segment_of(const TiledProblem& problem, std::int64_t index) {
  const std::int64_t first = index * problem.chunks_per_segment();
  return {index, first, std::min(first + problem.chunks_per_segment(), problem.num_chunks())};
}

ChunkRange tokens_of(const TiledProblem& problem, std::int64_t first, std::int64_t end) {
  const std::int64_t T = problem.shape.T;
  return {std::clamp<std::int64_t>(first * problem.chunk(), 0, T),
          std::clamp<std::int64_t>(end * problem.chunk(), 0, T)};
}

SegmentState::SegmentState(const TiledProblem& problem)
    : column_(problem.F * padded(problem.shape.D)),
      num_floats_(num_floats(problem)),
      own_(num_floats_),
      sum_(problem.num_segments() > 1 ? num_floats_ : 0) {}

std::int64_t SegmentState::num_floats(const TiledProblem& problem) {
  return problem.F * padded(problem.shape.D) + padded(problem.F);
}

void SegmentState::begin(const float* base) {
  base_ = base;
  own_.clear();
  if (base_ != nullptr) {
    std::copy(base_, base_ + num_floats_, sum_.data());
  }
}

void SegmentState::settle() {
  if (base_ != nullptr) {
    add_floats(base_, own_.data(), num_floats_, sum_.data());
  }
}

at::Tensor make_borders(const TiledProblem& problem) {
  const std::int64_t borders = problem.num_segments() - 1;
  return borders == 0 ? at::Tensor()
                      : at::empty({problem.shape.B * problem.key_heads,
                                   borders,
                                   SegmentState::num_floats(problem)},
                                  problem.q.options().dtype(at::kFloat));
}

WalkPlan plan_walk(const TiledProblem& problem, std::int64_t num_threads) {
  WalkPlan plan{problem.shape.B * problem.key_heads, 0, problem.num_segments()};
  const std::int64_t rest = plan.num_heads % num_threads;
  // The threads' time on the rest, in heads: one if each is walked whole.
  const std::int64_t turns = (rest * plan.num_segments + num_threads - 1) / num_threads;
  const double by_segments =
      (1 + kCostOfSums) * static_cast<double>(turns) / static_cast<double>(plan.num_segments);
  plan.num_whole = by_segments < 1 ? plan.num_heads - rest : plan.num_heads;
  return plan;
}

HeadBorders::HeadBorders(const at::Tensor& borders, std::int64_t head, bool descends)
    : descends_(descends) {
  if (borders.defined()) {
    num_borders_ = borders.size(1);
    num_floats_ = borders.size(2);
    data_ = borders.data_ptr<float>() + head * num_borders_ * num_floats_;
  }
}

float* HeadBorders::at_border(std::int64_t border) const {
  return border < 0 || border >= num_borders_ ? nullptr : data_ + border * num_floats_;
}

const float* HeadBorders::before(std::int64_t segment) const {
  return at_border(descends_ ? segment : segment - 1);
}

float* HeadBorders::behind(std::int64_t segment) const {
  return at_border(descends_ ? segment - 1 : segment);
}

void HeadBorders::add_up() const {
  for (std::int64_t i = 1; i < num_borders_; ++i) {
    const std::int64_t border = descends_ ? num_borders_ - 1 - i : i;
    float* own = at_border(border);
    add_floats(at_border(border + (descends_ ? 1 : -1)), own, num_floats_, own);
  }
}

}  // namespace hedgerow::kernels::cpu
