#include "kernels/cpu/recall_cpu.hpp"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/problem/recall_cache.hpp"

namespace hedgerow::kernels::cpu {
namespace {

TiledProblem in_floats(const TiledProblem& problem) {
  TiledProblem other = problem;
  other.products = Products::kFloat;
  return other;
}

void widen_row(const at::Tensor& x, std::int64_t row, std::int64_t width, float* out) {
  const auto* from = static_cast<const char*>(x.const_data_ptr()) +
                     row * x.stride(0) * static_cast<std::int64_t>(x.element_size());
  widen_rows(from, x.scalar_type(), x.stride(0), 1, x.size(1), out, width);
}

}  // namespace

RecallHead::RecallHead(const TiledProblem& problem)
    : problem_(in_floats(problem)),
      sliding_(problem.options.window == WindowLayout::kSliding),
      N_(problem.options.recall_cache),
      W_(problem.options.window_size),
      rows_(N_ + W_),
      lanes_(padded(rows_)),
      width_(padded(problem.shape.D)),
      maps_(problem.key_heads_of_kv()),
      map_k_(problem_, problem_.map_k, rows_),
      matrices_(static_cast<std::size_t>(maps_)),
      columns_(static_cast<std::size_t>(maps_)),
      positions_(static_cast<std::size_t>(rows_), -1),
      is_candidate_(static_cast<std::size_t>(rows_)),
      is_chosen_(static_cast<std::size_t>(rows_)),
      k_(rows_ * width_),
      v_(rows_ * width_),
      next_k_(N_ * width_),
      next_v_(N_ * width_),
      phi_(maps_ * problem.F * lanes_),
      recalled_(rows_ * width_),
      lane_values_(3 * lanes_),
      own_(maps_ * problem.F * (width_ + 1)) {}

void RecallHead::begin(std::int64_t g) {
  g_ = g;
  std::fill(positions_.begin(), positions_.end(), -1);
  k_.clear();
  v_.clear();
  own_.clear();
  for (std::int64_t u = 0; u < maps_; ++u) {
    use_state(
        u, own_.data() + u * problem_.F * width_, own_.data() + (maps_ * width_ + u) * problem_.F);
  }
}

void RecallHead::use_state(std::int64_t u, float* matrix, float* column) {
  matrices_[static_cast<std::size_t>(u)] = matrix;
  columns_[static_cast<std::size_t>(u)] = column;
}

void RecallHead::load(std::int64_t g,
                      const std::int64_t* positions,
                      const at::Tensor& k,
                      const at::Tensor& v) {
  g_ = g;
  std::copy_n(positions, N_, positions_.begin());
  for (std::int64_t n = 0; n < N_; ++n) {
    widen_row(k, n, width_, k_.data() + n * width_);
    widen_row(v, n, width_, v_.data() + n * width_);
  }
}

void RecallHead::store(std::int64_t* positions, const at::Tensor& k, const at::Tensor& v) {
  std::copy_n(positions_.begin(), N_, positions);
  const std::int64_t D = problem_.shape.D;
  narrow_rows(k_.data(), width_, N_, D, nullptr, k.data_ptr(), k.scalar_type(), D);
  narrow_rows(v_.data(), width_, N_, D, nullptr, v.data_ptr(), v.scalar_type(), D);
}

void RecallHead::choose(std::int64_t first) {
  std::iota(positions_.begin() + N_, positions_.end(), first);
  for (std::size_t row = 0; row < positions_.size(); ++row) {
    is_candidate_[row] = positions_[row] >= std::max<std::int64_t>(problem_.options.num_sinks, 0);
  }
  score_candidates();
  const float* scores = lane_values_.data();
  chosen_.clear();
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (is_candidate_[static_cast<std::size_t>(row)]) chosen_.push_back(row);
  }
  // Rows lie by token: equal scores leave the earlier one.
  const auto is_worse_recalled = [scores](std::int64_t a, std::int64_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  if (static_cast<std::int64_t>(chosen_.size()) > N_) {
    std::nth_element(chosen_.begin(), chosen_.begin() + N_, chosen_.end(), is_worse_recalled);
    chosen_.resize(static_cast<std::size_t>(N_));
    std::sort(chosen_.begin(), chosen_.end());
  }
  std::fill(is_chosen_.begin(), is_chosen_.end(), false);
  for (const std::int64_t row : chosen_) is_chosen_[static_cast<std::size_t>(row)] = true;
  fold_dropped();
  keep_chosen();
}

// lane_values_[row] = the residual, the features of all rows in phi_.
void RecallHead::score_candidates() {
  const std::int64_t F = problem_.F, D = problem_.shape.D;
  float* scores = lane_values_.data();
  float* inverse = scores + lanes_;
  float* squares = inverse + lanes_;
  std::fill_n(scores, lanes_, 0.0F);
  for (std::int64_t u = 0; u < maps_; ++u) {
    const auto map = static_cast<std::size_t>(u);
    float* phi = phi_.data() + u * F * lanes_;
    map_k_.select_head(g_ * maps_ + u);
    map_k_.features({k_.data(), width_}, 0, rows_, nullptr, phi, lanes_);
    column_sums(phi, lanes_, F, lanes_, columns_[map], inverse, false);
    for (std::int64_t row = 0; row < rows_; ++row) {
      inverse[row] = 1.0F / std::max(inverse[row], static_cast<float>(kLeastRecallMass));
    }
    multiply(problem_.products,
             {rows_, D, F},
             transposed(phi, lanes_),
             {matrices_[map], width_},
             recalled_.data(),
             width_,
             false);
    scale_rows(recalled_.data(), width_, inverse, rows_, D, recalled_.data(), width_);
    subtract(v_.data(), rows_ * width_, recalled_.data());
    row_dots(recalled_.data(), width_, recalled_.data(), width_, rows_, D, squares);
    for (std::int64_t row = 0; row < rows_; ++row) scores[row] += squares[row];
  }
  // A score that is no number has no order: its key counts as recalled worst of all.
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (std::isnan(scores[row])) scores[row] = std::numeric_limits<float>::infinity();
  }
}

void RecallHead::fold_dropped() {
  const std::int64_t F = problem_.F, D = problem_.shape.D;
  float* is_dropped = lane_values_.data() + lanes_;
  bool drops = false;
  for (std::int64_t row = 0; row < rows_; ++row) {
    const auto at = static_cast<std::size_t>(row);
    // A sliding window still holds the chunk's.
    const bool dropped = is_candidate_[at] && !is_chosen_[at] && (row < N_ || !sliding_);
    is_dropped[row] = dropped ? 1.0F : 0.0F;
    drops = drops || dropped;
  }
  if (!drops) return;
  recalled_.clear();  // the dropped rows' values alone: 0 times what is no number is none
  for (std::int64_t row = 0; row < rows_; ++row) {
    if (is_dropped[row] > 0.0F)
      std::copy_n(v_.data() + row * width_, D, recalled_.data() + row * width_);
  }
  for (std::int64_t u = 0; u < maps_; ++u) {
    const auto map = static_cast<std::size_t>(u);
    const float* phi = phi_.data() + u * F * lanes_;
    add_row_sums(phi, lanes_, F, rows_, is_dropped, columns_[map]);
    multiply(problem_.products,
             {F, D, rows_},
             as_stored(phi, lanes_),
             {recalled_.data(), width_},
             matrices_[map],
             width_,
             true);
  }
}

// The chosen rows become the cache's, behind entries of no key.
void RecallHead::keep_chosen() {
  const auto missing = N_ - static_cast<std::int64_t>(chosen_.size());
  std::vector<std::int64_t> positions(static_cast<std::size_t>(N_), -1);
  std::fill_n(next_k_.data(), missing * width_, 0.0F);
  std::fill_n(next_v_.data(), missing * width_, 0.0F);
  for (std::int64_t n = missing; n < N_; ++n) {
    const std::int64_t row = chosen_[static_cast<std::size_t>(n - missing)];
    positions[static_cast<std::size_t>(n)] = positions_[static_cast<std::size_t>(row)];
    std::copy_n(k_.data() + row * width_, width_, next_k_.data() + n * width_);
    std::copy_n(v_.data() + row * width_, width_, next_v_.data() + n * width_);
  }
  std::copy(positions.begin(), positions.end(), positions_.begin());
  std::copy_n(next_k_.data(), N_ * width_, k_.data());
  std::copy_n(next_v_.data(), N_ * width_, v_.data());
}

void RecallHead::fold(const float* k, const float* v) {
  const std::int64_t F = problem_.F, ld = padded(1);
  for (std::int64_t u = 0; u < maps_; ++u) {
    const auto map = static_cast<std::size_t>(u);
    map_k_.select_head(g_ * maps_ + u);
    map_k_.features({k, width_}, 0, 1, nullptr, phi_.data(), ld);
    add_row_sums(phi_.data(), ld, F, 1, nullptr, columns_[map]);
    multiply(problem_.products,
             {F, problem_.shape.D, 1},
             as_stored(phi_.data(), ld),
             {v, width_},
             matrices_[map],
             width_,
             true);
  }
}

void RecallHead::fold_left(std::int64_t chunk_first, std::int64_t end) {
  for (std::int64_t token = chunk_first; token < end; ++token) {
    if (token < problem_.options.num_sinks || holds(token)) continue;
    const std::int64_t row = (token - chunk_first) * width_;
    fold(chunk_k() + row, chunk_v() + row);
  }
}

bool RecallHead::holds(std::int64_t position) const {
  return std::binary_search(positions_.begin(), positions_.begin() + N_, position);
}

at::Tensor recall_choices(const TiledProblem& problem) {
  const std::int64_t B = problem.shape.B, G = problem.shape.G, N = problem.options.recall_cache,
                     W = problem.options.window_size;
  const std::int64_t choices = choice_of_chunk(problem, problem.num_chunks() - 1) + 1;
  if (N == 0 || choices <= 0) return {};
  const at::Tensor kept = at::empty({choices, B, G, N}, problem.q.options().dtype(at::kLong));
  at::parallel_for(0, B * G, 1, [&](std::int64_t begin, std::int64_t end) {
    RecallHead head(problem);
    for (std::int64_t i = begin; i < end; ++i) {
      const at::Tensor k = problem.k[i / G][i % G], v = problem.v[i / G][i % G];
      head.begin(i % G);
      for (std::int64_t choice = 0; choice < choices; ++choice) {
        const std::int64_t first = choice * W;
        if (problem.options.window == WindowLayout::kSliding && choice > 0) {
          head.fold_left(first - W, first);
        }
        for (std::int64_t token = 0; token < W; ++token) {
          widen_row(k, first + token, head.width(), head.chunk_k() + token * head.width());
          widen_row(v, first + token, head.width(), head.chunk_v() + token * head.width());
        }
        head.choose(first);
        std::copy_n(head.positions(), N, kept.data_ptr<std::int64_t>() + (choice * B * G + i) * N);
      }
    }
  });
  return kept;
}

}  // namespace hedgerow::kernels::cpu
