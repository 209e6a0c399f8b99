// The queries' side of hybrid_backward_head.hpp.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/hybrid_backward_head.hpp"

namespace hedgerow::kernels::cpu {

BackwardHead::BackwardHead(const HybridProblem& problem,
                           const HybridForward& forward,
                           const at::Tensor& dy,
                           const HybridNeeds& needs,
                           const BackwardPartials& out)
    : problem_(problem),
      forward_(forward),
      needs_(needs),
      out_(out),
      ld_(problem.tile_lanes()),
      ld_chunk_(problem.chunk_lanes()),
      width_(padded(problem.shape.D)),
      tiles_per_chunk_((problem.chunk() + HybridProblem::kQueryTile - 1) /
                       HybridProblem::kQueryTile),
      near_linear_(problem.options.layout != WindowLayout::kTerraced),
      scores_(needs.q || needs.k || needs.v),
      keys_side_(needs.k || needs.v || needs.map_k),
      q_rows_(problem.q),
      k_rows_(problem.k),
      v_rows_(problem.v),
      y_rows_(forward.y_saved),
      dy_rows_(dy),
      map_q_(problem, problem.map_q, FeatureMapRole::kQuery, problem.tile_lanes()),
      map_k_(problem, problem.map_k, FeatureMapRole::kKey, problem.chunk_lanes()),
      q_transposed_(problem.shape.D * ld_),
      dn_(ld_ * width_),
      dn_transposed_(problem.shape.D * ld_),
      phi_k_(problem.F * ld_chunk_),
      dphi_(problem.F * std::max(ld_, ld_chunk_)),
      v_transposed_(keys_side_ ? problem.shape.D * ld_chunk_ : 0),
      state_(problem.F * width_),
      state_sum_(problem.F),
      scores_tile_(scores_ ? 2 * ld_chunk_ * ld_ : 0),
      weights_(scores_ ? 2 * ld_chunk_ * ld_ : 0),
      da_(2 * ld_chunk_ * ld_),
      linear_(ld_chunk_ * ld_),
      linear_transposed_(ld_ * ld_chunk_),
      dq_tile_(needs.q ? ld_ * width_ : 0),
      phi_q_(problem.num_chunks() * tiles_per_chunk_ * problem.F * ld_),
      dphi_near_(near_linear_ ? problem.num_chunks() * problem.F * ld_chunk_ : 0),
      dk_(needs.k ? problem.shape.T * width_ : 0),
      dv_(needs.v ? problem.shape.T * width_ : 0),
      inverse_(problem.shape.T + ld_),
      dz_(problem.num_chunks() * tiles_per_chunk_ * ld_),
      lanes_(4 * ld_) {}

void BackwardHead::run(std::int64_t b, std::int64_t h) {
  const std::int64_t kv_head = h / problem_.shape.group();
  b_ = b;
  h_ = h;
  q_ = q_rows_.rows(b, h);
  k_ = k_rows_.rows(b, kv_head);
  v_ = v_rows_.rows(b, kv_head);
  y_ = y_rows_.rows(b, h);
  dy_ = dy_rows_.rows(b, h);
  map_q_.select_head(h);
  map_k_.select_head(h);
  gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h] : 0.0F;
  for (Scratch* sum : {&state_, &state_sum_, &dphi_near_, &dk_, &dv_}) {
    sum->clear();
  }
  total_ = 0;
  for (std::int64_t chunk = 0; chunk < problem_.num_chunks(); ++chunk) {
    ascend(chunk);
  }
  if (keys_side_) {
    state_.clear();
    state_sum_.clear();
    for (std::int64_t chunk = problem_.num_chunks() - 1; chunk >= 0; --chunk) {
      descend(chunk);
    }
  }
  store_head();
}

std::int64_t BackwardHead::tile_index(std::int64_t query) const {
  const std::int64_t chunk = query / problem_.chunk();
  return chunk * tiles_per_chunk_ + (query - chunk * problem_.chunk()) / HybridProblem::kQueryTile;
}

void BackwardHead::ascend(std::int64_t chunk) {
  const std::int64_t far = chunk - problem_.state_lag();
  const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
  if (far >= 0 && (near_linear_ || flushes)) {
    const ChunkRange keys = chunk_range(problem_, far);
    map_k_.features(k_, keys.begin, keys.tokens(), nullptr, phi_k_.data(), ld_chunk_);
  }
  for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far); });
  if (flushes) {
    const ChunkRange keys = chunk_range(problem_, far);
    add_row_sums(phi_k_.data(), ld_chunk_, problem_.F, keys.tokens(), nullptr, state_sum_.data());
    multiply(problem_.products,
             {problem_.F, problem_.shape.D, keys.tokens()},
             as_stored(phi_k_.data(), ld_chunk_),
             v_.right(keys.begin),
             state_.data(),
             width_,
             true);
  }
}

void BackwardHead::prepare_rows(const QueryTile& tile) {
  const std::int64_t n = tile.queries();
  const float* denominator = head_of(forward_.denominator) + tile.begin;
  float* inverse = inverse_.data() + tile.begin;
  float* lane_dz = dz(tile.begin);
  row_dots(dy_.row(tile.begin), dy_.ld, y_.row(tile.begin), y_.ld, n, problem_.shape.D, lane_dz);
  for (std::int64_t i = 0; i < n; ++i) {
    inverse[i] = 1.0F / denominator[i];
    lane_dz[i] *= -inverse[i];
  }
  scale_rows(dy_.row(tile.begin), dy_.ld, inverse, n, problem_.shape.D, dn_.data(), width_);
  transpose(dn_.data(), width_, n, problem_.shape.D, dn_transposed_.data(), ld_);
}

void BackwardHead::walk_tile(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n);
  const bool linear = far > 0 || tile.linear_rows() > 0;
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
    for (std::int64_t i = 0; i < n; ++i) {
      total_ += static_cast<double>(totals[i]);
    }
    map_q_.backward(phi,
                    dphi_.data(),
                    ld_,
                    q_,
                    tile.begin,
                    n,
                    head_of(out_.layer_q),
                    head_of(out_.bias_q),
                    needs_.q ? dq_tile_.data() : nullptr,
                    width_);
  }
  if (scores_) {
    window_side(tile, totals);
  }
  if (needs_.q) {
    const at::Tensor& dq = out_.dq;
    const std::int64_t offset = b_ * dq.stride(0) + h_ * dq.stride(1) + tile.begin * dq.stride(2);
    auto* to =
        static_cast<char*>(dq.data_ptr()) + offset * static_cast<std::int64_t>(dq.element_size());
    narrow_rows(dq_tile_.data(), width_, n, D, nullptr, to, dq.scalar_type(), dq.stride(2));
  }
}

void BackwardHead::pair_gradients(const QueryTile& tile) {
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

void BackwardHead::query_features(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, F = problem_.F, n = tile.queries(), lanes = padded(n);
  float* dphi = dphi_.data();
  if (far > 0) {
    multiply(problem_.products,
             {F, n, D},
             as_stored(state_.data(), width_),
             {dn_transposed_.data(), ld_},
             dphi,
             ld_,
             false);
    add_outer(dphi, ld_, F, lanes, state_sum_.data(), dz(tile.begin));
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

void BackwardHead::window_side(const QueryTile& tile, const float* totals) {
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
               dk_.data() + tile.keys_begin * width_,
               width_,
               true);
    }
  }
  if (needs_.v) {
    value_side(tile);
  }
}

void BackwardHead::value_side(const QueryTile& tile) {
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
           dv_.data() + tile.keys_begin * width_,
           width_,
           true);
}

}  // namespace hedgerow::kernels::cpu
