// The queries' side of hybrid_backward_walker.hpp.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/cpu/hybrid_backward_walker.hpp"

namespace hedgerow::kernels::cpu {

BackwardWalker::BackwardWalker(const HybridProblem& problem,
                               const HybridForward& forward,
                               const at::Tensor& states,
                               const at::Tensor& dy,
                               const HybridNeeds& needs,
                               const BackwardPartials& out)
    : problem_(problem),
      forward_(forward),
      states_(states),
      needs_(needs),
      out_(out),
      ld_(problem.tile_lanes()),
      ld_chunk_(problem.chunk_lanes()),
      width_(padded(problem.shape.D)),
      tiles_per_chunk_((problem.chunk() + HybridProblem::kQueryTile - 1) /
                       HybridProblem::kQueryTile),
      chunks_(std::min(problem.chunks_per_segment(), problem.num_chunks())),
      near_linear_(problem.options.layout != WindowLayout::kTerraced),
      scores_(needs.q || needs.k || needs.v),
      keys_side_(needs.k || needs.v || needs.map_k),
      q_rows_(problem.q, (chunks_ + lag() + 1) * problem.chunk()),
      k_rows_(problem.k, (chunks_ + 2 * lag()) * problem.chunk()),
      v_rows_(problem.v, (chunks_ + 2 * lag()) * problem.chunk()),
      y_rows_(forward.y_saved, (chunks_ + lag() + 1) * problem.chunk()),
      dy_rows_(dy, (chunks_ + lag() + 1) * problem.chunk()),
      map_q_(problem, problem.map_q, FeatureMapRole::kQuery, problem.tile_lanes()),
      map_k_(problem, problem.map_k, FeatureMapRole::kKey, problem.chunk_lanes()),
      state_(problem),
      state_gradient_(problem),
      q_transposed_(problem.shape.D * ld_),
      dn_(ld_ * width_),
      dn_transposed_(problem.shape.D * ld_),
      phi_k_(problem.F * ld_chunk_),
      dphi_(problem.F * std::max(ld_, ld_chunk_)),
      v_transposed_(keys_side_ ? problem.shape.D * ld_chunk_ : 0),
      scores_tile_(scores_ ? 2 * ld_chunk_ * ld_ : 0),
      weights_(scores_ ? 2 * ld_chunk_ * ld_ : 0),
      da_(2 * ld_chunk_ * ld_),
      linear_(ld_chunk_ * ld_),
      linear_transposed_(ld_ * ld_chunk_),
      dq_tile_(needs.q ? ld_ * width_ : 0),
      phi_q_((chunks_ + lag() + 1) * tiles_per_chunk_ * problem.F * ld_),
      dphi_near_(near_linear_ ? (chunks_ + lag()) * problem.F * ld_chunk_ : 0),
      dk_(needs.k ? (chunks_ + 2 * lag()) * problem.chunk() * width_ : 0),
      dv_(needs.v ? (chunks_ + 2 * lag()) * problem.chunk() * width_ : 0),
      inverse_((chunks_ + lag() + 1) * problem.chunk() + ld_),
      dz_((chunks_ + lag() + 1) * tiles_per_chunk_ * ld_),
      lanes_(4 * ld_) {}

void BackwardWalker::select(std::int64_t head) {
  b_ = head / problem_.shape.H;
  h_ = head % problem_.shape.H;
  map_q_.select_head(h_);
  map_k_.select_head(h_);
  gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h_] : 0.0F;
}

float* BackwardWalker::head_of(const at::Tensor& x) const {
  return x.data_ptr<float>() + b_ * x.stride(0) + h_ * x.stride(1);
}

float* BackwardWalker::partial_of(const at::Tensor& x) const {
  return x.defined() ? x.data_ptr<float>() + b_ * x.stride(0) + segment_.index * x.stride(1) +
                           h_ * x.stride(2)
                     : nullptr;
}

void BackwardWalker::enter(const Segment& segment) {
  const std::int64_t kv_head = h_ / problem_.shape.group();
  segment_ = segment;
  const ChunkRange queries =
      tokens_of(problem_, segment.first_chunk, segment.end_chunk + lag() + 1);
  const ChunkRange keys =
      tokens_of(problem_, segment.first_chunk - lag(), segment.end_chunk + lag());
  q_ = q_rows_.rows(b_, h_, queries.begin, queries.end);
  y_ = y_rows_.rows(b_, h_, queries.begin, queries.end);
  dy_ = dy_rows_.rows(b_, h_, queries.begin, queries.end);
  k_ = k_rows_.rows(b_, kv_head, keys.begin, keys.end);
  v_ = v_rows_.rows(b_, kv_head, keys.begin, keys.end);
}

void BackwardWalker::walk(const Segment& segment, const float* before, float* behind) {
  enter(segment);
  for (Scratch* sum : {&dphi_near_, &dk_, &dv_}) {
    sum->clear();
  }
  total_ = 0;
  const std::int64_t head = b_ * problem_.shape.H + h_;
  state_.begin(HeadBorders(states_, head, /*descends=*/false).before(segment.index));
  for (std::int64_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
    ascend(chunk);
  }
  if (keys_side_) {
    const std::int64_t last = std::min(segment.end_chunk + lag() + 1, problem_.num_chunks());
    for (std::int64_t chunk = segment.end_chunk; chunk < last; ++chunk) {
      const bool meets_own_keys = chunk < segment.end_chunk + lag();
      if (meets_own_keys && (near_linear_ || scores_)) {
        ascend(chunk);
      } else {
        prepare_queries(chunk);
      }
    }
    state_gradient_.begin(before);
    for (std::int64_t chunk = segment.end_chunk - 1; chunk >= segment.first_chunk; --chunk) {
      descend(chunk);
    }
    if (behind != nullptr) {
      state_gradient_.store(behind);
    }
  }
  store_segment();
}

void BackwardWalker::sum(const Segment& segment, float* own) {
  enter(segment);
  state_gradient_.begin(nullptr);
  const std::int64_t last = std::min(segment.end_chunk + lag() + 1, problem_.num_chunks());
  for (std::int64_t chunk = last - 1; chunk > segment.first_chunk + lag(); --chunk) {
    prepare_queries(chunk);
    join_queries(chunk);
  }
  state_gradient_.store_own(own);
}

std::int64_t BackwardWalker::tile_index(std::int64_t query) const {
  const std::int64_t chunk = query / problem_.chunk();
  return (chunk - segment_.first_chunk) * tiles_per_chunk_ +
         (query - chunk * problem_.chunk()) / HybridProblem::kQueryTile;
}

void BackwardWalker::ascend(std::int64_t chunk) {
  const std::int64_t far = chunk - problem_.state_lag();
  const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
  if (far >= 0 && (near_linear_ || flushes)) {
    const ChunkRange keys = chunk_range(problem_, far);
    map_k_.features(k_, keys.begin, keys.tokens(), nullptr, phi_k_.data(), ld_chunk_);
  }
  for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far); });
  if (flushes) {
    const ChunkRange keys = chunk_range(problem_, far);
    add_row_sums(phi_k_.data(), ld_chunk_, problem_.F, keys.tokens(), nullptr, state_.own_column());
    multiply(problem_.products,
             {problem_.F, problem_.shape.D, keys.tokens()},
             as_stored(phi_k_.data(), ld_chunk_),
             v_.right(keys.begin),
             state_.own_matrix(),
             width_,
             true);
    state_.settle();
  }
}

void BackwardWalker::prepare_queries(std::int64_t chunk) {
  for_tiles(problem_, chunk, [&](const QueryTile& tile) {
    prepare_rows(tile);
    transpose(
        q_.row(tile.begin), q_.ld, tile.queries(), problem_.shape.D, q_transposed_.data(), ld_);
    map_q_.features(q_, tile.begin, tile.queries(), q_transposed_.data(), phi_q(tile.begin), ld_);
  });
}

void BackwardWalker::prepare_rows(const QueryTile& tile) {
  const std::int64_t n = tile.queries();
  const float* denominator = head_of(forward_.denominator) + tile.begin;
  float* rows_inverse = inverse(tile.begin);
  float* lane_dz = dz(tile.begin);
  row_dots(dy_.row(tile.begin), dy_.ld, y_.row(tile.begin), y_.ld, n, problem_.shape.D, lane_dz);
  for (std::int64_t i = 0; i < n; ++i) {
    rows_inverse[i] = 1.0F / denominator[i];
    lane_dz[i] *= -rows_inverse[i];
  }
  scale_rows(dy_.row(tile.begin), dy_.ld, rows_inverse, n, problem_.shape.D, dn_.data(), width_);
  transpose(dn_.data(), width_, n, problem_.shape.D, dn_transposed_.data(), ld_);
}

void BackwardWalker::walk_tile(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n);
  const bool linear = far > 0 || tile.linear_rows() > 0, own = is_own(far + lag());
  float* totals = lanes_.data();
  std::fill(totals, totals + ld_, 0.0F);
  prepare_rows(tile);
  if (linear || scores_) {
    transpose(q_.row(tile.begin), q_.ld, n, D, q_transposed_.data(), ld_);
  }
  pair_gradients(tile);
  if (needs_.q) {
    std::fill(dq_tile_.data(), dq_tile_.data() + n * width_, 0.0F);
  }
  if (linear) {
    float* phi = phi_q(tile.begin);
    map_q_.features(q_, tile.begin, n, q_transposed_.data(), phi, ld_);
    query_features(tile, far);
    column_dots(phi, dphi_.data(), ld_, problem_.F, lanes, totals);
    for (std::int64_t i = 0; i < lanes; ++i) {
      totals[i] = -totals[i];
    }
    if (own) {
      for (std::int64_t i = 0; i < n; ++i) {
        total_ += static_cast<double>(totals[i]);
      }
      map_q_.backward(phi,
                      dphi_.data(),
                      ld_,
                      q_,
                      tile.begin,
                      n,
                      partial_of(out_.layer_q),
                      partial_of(out_.bias_q),
                      needs_.q ? dq_tile_.data() : nullptr,
                      width_);
    }
  }
  if (scores_) {
    window_side(tile, totals);
  }
  if (needs_.q && own) {
    const at::Tensor& dq = out_.dq;
    const std::int64_t offset = b_ * dq.stride(0) + h_ * dq.stride(1) + tile.begin * dq.stride(2);
    auto* to =
        static_cast<char*>(dq.data_ptr()) + offset * static_cast<std::int64_t>(dq.element_size());
    narrow_rows(dq_tile_.data(), width_, n, D, nullptr, to, dq.scalar_type(), dq.stride(2));
  }
}

void BackwardWalker::pair_gradients(const QueryTile& tile) {
  const std::int64_t n = tile.queries(), lanes = padded(n);
  const std::int64_t rows = scores_ ? tile.keys() : tile.linear_rows();
  if (rows == 0) {
    return;
  }
  multiply(problem_.products,
           {rows, n, problem_.shape.D},
           as_stored(v_.row(tile.keys_begin), v_.ld),
           {dn_transposed_.data(), ld_},
           da_.data(),
           ld_,
           false);
  add_outer(da_.data(), ld_, rows, lanes, nullptr, dz(tile.begin));
  if (tile.linear_rows() > 0) {
    std::copy(da_.data(), da_.data() + tile.linear_rows() * ld_, linear_.data());
    mask_linear(
        linear_.data(), ld_, tile.linear_rows(), lanes, tile.linear_mask, lanes_.data() + ld_);
  }
}

void BackwardWalker::query_features(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, F = problem_.F, n = tile.queries(), lanes = padded(n);
  float* dphi = dphi_.data();
  if (far > 0) {
    multiply(problem_.products,
             {F, n, D},
             as_stored(state_.matrix(), width_),
             {dn_transposed_.data(), ld_},
             dphi,
             ld_,
             false);
    add_outer(dphi, ld_, F, lanes, state_.column(), dz(tile.begin));
  } else {
    std::fill(dphi, dphi + F * ld_, 0.0F);
  }
  const std::int64_t rows = tile.linear_rows();
  if (rows == 0) {
    return;
  }
  multiply(problem_.products,
           {F, n, rows},
           as_stored(phi_k_.data(), ld_chunk_),
           {linear_.data(), ld_},
           dphi,
           ld_,
           true);
  if (keys_side_) {
    transpose(linear_.data(), ld_, rows, n, linear_transposed_.data(), ld_chunk_);
    multiply(problem_.products,
             {F, rows, n},
             as_stored(phi_q(tile.begin), ld_),
             {linear_transposed_.data(), ld_chunk_},
             dphi_near(far),
             ld_chunk_,
             true);
  }
}

void BackwardWalker::window_side(const QueryTile& tile, const float* totals) {
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n),
                     keys = tile.keys();
  float* maxima = lanes_.data() + 2 * ld_;
  float* sums = lanes_.data() + 3 * ld_;
  const float scale = 1.0F / std::sqrt(static_cast<float>(D));
  if (problem_.windowed()) {
    multiply(problem_.products,
             {keys, n, D},
             as_stored(k_.row(tile.keys_begin), k_.ld),
             {q_transposed_.data(), ld_},
             scores_tile_.data(),
             ld_,
             false);
    window_weights(scores_tile_.data(),
                   ld_,
                   keys,
                   lanes,
                   tile.window_mask,
                   scale,
                   gate_,
                   weights_.data(),
                   maxima,
                   sums);
    window_gradient(
        scores_tile_.data(), weights_.data(), ld_, keys, lanes, maxima, totals, scale, da_.data());
    if (needs_.q) {
      multiply(problem_.products,
               {n, D, keys},
               transposed(da_.data(), ld_),
               k_.right(tile.keys_begin),
               dq_tile_.data(),
               width_,
               true);
    }
    if (needs_.k) {
      multiply(problem_.products,
               {keys, D, n},
               as_stored(da_.data(), ld_),
               q_.right(tile.begin),
               key_row(dk_, tile.keys_begin),
               width_,
               true);
    }
  }
  if (needs_.v) {
    value_side(tile);
  }
}

void BackwardWalker::value_side(const QueryTile& tile) {
  const std::int64_t n = tile.queries(), rows = tile.linear_rows();
  float* weights = weights_.data();
  if (rows > 0) {
    float* linear = problem_.windowed() ? linear_.data() : weights;
    multiply(problem_.products,
             {rows, n, problem_.F},
             transposed(phi_k_.data(), ld_chunk_),
             {phi_q(tile.begin), ld_},
             linear,
             ld_,
             false);
    mask_linear(linear, ld_, rows, padded(n), tile.linear_mask, lanes_.data() + ld_);
    if (problem_.windowed()) {
      add_tile(weights, linear, ld_, rows, padded(n));
    }
  }
  multiply(problem_.products,
           {tile.keys(), problem_.shape.D, n},
           as_stored(weights, ld_),
           {dn_.data(), width_},
           key_row(dv_, tile.keys_begin),
           width_,
           true);
}

}  // namespace hedgerow::kernels::cpu
