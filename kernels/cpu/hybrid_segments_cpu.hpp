// Segments: runs of chunks that the CPU's threads can walk side by side, so that few heads keep
// many cores busy and a thread's scratch has one size at any T. What a segment reads of the others
// is one state: (S, z) of the keys before it, or (dS, dz) of the queries behind it. Inside a
// segment the state is what lay beyond its border plus what the segment added, two sums, so the
// bytes are the same whether one thread walks a head from end to end or several walk its segments.
// Called by both directions of the CPU's backend (hybrid_forward_cpu.cpp, hybrid_backward_cpu.cpp).
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>

#include "kernels/cpu/hybrid_head_cpu.hpp"

namespace hedgerow::kernels::cpu {

struct Segment {
  std::int64_t index, first_chunk, end_chunk;
};
Segment segment_of(const TiledProblem& problem, std::int64_t index);
// The tokens of chunks first .. end, as far as there are any.
ChunkRange tokens_of(const TiledProblem& problem, std::int64_t first, std::int64_t end);

// (S, z) or (dS, dz) while a segment is walked: a matrix [F, padded(D)] and behind it a column [F].
class SegmentState {
 public:
  explicit SegmentState(const TiledProblem& problem);
  [[nodiscard]] static std::int64_t num_floats(const TiledProblem& problem);
  // `base` [num_floats], read as long as the segment is walked: the state at its border; null: 0.
  void begin(const float* base);
  // What the segment adds is summed up there; the state has it from settle() on.
  [[nodiscard]] float* own_matrix() { return own_.data(); }
  [[nodiscard]] float* own_column() { return own_.data() + column_; }
  void settle();
  [[nodiscard]] const float* matrix() { return state(); }
  [[nodiscard]] const float* column() { return state() + column_; }
  void store(float* out) { std::copy(state(), state() + num_floats_, out); }
  void store_own(float* out) { std::copy(own_.data(), own_.data() + num_floats_, out); }

 private:
  const float* state() { return base_ == nullptr ? own_.data() : sum_.data(); }

  std::int64_t column_, num_floats_;
  const float* base_ = nullptr;
  Scratch own_, sum_;
};

// The states at the inner borders of all heads' segments, [B U, segments - 1, num_floats] fp32;
// undefined with one segment.
at::Tensor make_borders(const TiledProblem& problem);

// A head is here a key head with the query heads that share its map and state: B U in all, U =
// key_heads. Heads 0 .. num_whole are walked from end to end, by all threads; the rest, fewer than
// there are threads, by segments. No byte of a result depends on it.
struct WalkPlan {
  std::int64_t num_heads, num_whole, num_segments;
};
[[nodiscard]] WalkPlan plan_walk(const TiledProblem& problem, std::int64_t num_threads);

// The borders of one head, in the order in which its segments are walked.
class HeadBorders {
 public:
  HeadBorders(const at::Tensor& borders, std::int64_t head, bool descends);
  // The state that a segment begins with, and where the one behind it goes; null: none.
  [[nodiscard]] const float* before(std::int64_t segment) const;
  [[nodiscard]] float* behind(std::int64_t segment) const;
  // What each segment adds, in its place behind it, becomes the state there.
  void add_up() const;

 private:
  [[nodiscard]] float* at_border(std::int64_t border) const;  // between segments i and i + 1
  float* data_ = nullptr;
  std::int64_t num_borders_ = 0, num_floats_ = 0;
  bool descends_;
};

// visit(walker, task) for the tasks 0 .. count, on all threads, each with a walker of its own.
template <typename Make, typename Visit>
void each_task(const TiledProblem& problem,
               std::int64_t count,
               const Make& make,
               const Visit& visit) {
  at::parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t end) {
    const ProductsScope scope(problem.products);
    auto walker = make();
    for (std::int64_t task = begin; task < end; ++task) {
      visit(walker, task);
    }
  });
}

// The borders of heads first .. end from what each segment adds.
template <typename Make>
void sum_segments(const TiledProblem& problem,
                  const at::Tensor& borders,
                  bool descends,
                  std::int64_t first,
                  std::int64_t end,
                  const Make& make) {
  const std::int64_t num_borders = problem.num_segments() - 1;
  each_task(problem, (end - first) * num_borders, make, [&](auto& walker, std::int64_t task) {
    const std::int64_t head = first + task / num_borders,
                       s = task % num_borders + (descends ? 1 : 0);
    walker.select(head);
    walker.sum(segment_of(problem, s), HeadBorders(borders, head, descends).behind(s));
  });
  for (std::int64_t head = first; head < end; ++head) {
    HeadBorders(borders, head, descends).add_up();
  }
}

// Walks all segments of all heads; with undefined borders no state passes between them. A walker,
// of which every thread makes its own, has
//   select(head)                   head = b U + u
//   walk(segment, before, behind)  the whole of it; `behind` null: the state there is not wanted
//   sum(segment, own)              only what it adds to the state
template <typename Make>
void walk_segments(const TiledProblem& problem,
                   const at::Tensor& borders,
                   bool descends,
                   const Make& make) {
  const WalkPlan plan = plan_walk(problem, at::get_num_threads());
  const std::int64_t N = plan.num_segments;
  each_task(problem, plan.num_whole, make, [&](auto& walker, std::int64_t head) {
    const HeadBorders at(borders, head, descends);
    walker.select(head);
    for (std::int64_t i = 0; i < N; ++i) {
      const std::int64_t s = descends ? N - 1 - i : i;
      walker.walk(segment_of(problem, s), at.before(s), at.behind(s));
    }
  });
  const std::int64_t rest = plan.num_heads - plan.num_whole;
  if (rest == 0) {
    return;
  }
  if (borders.defined()) {
    sum_segments(problem, borders, descends, plan.num_whole, plan.num_heads, make);
  }
  each_task(problem, rest * N, make, [&](auto& walker, std::int64_t task) {
    const std::int64_t head = plan.num_whole + task / N, s = task % N;
    walker.select(head);
    walker.walk(segment_of(problem, s), HeadBorders(borders, head, descends).before(s), nullptr);
  });
}

}  // namespace hedgerow::kernels::cpu
