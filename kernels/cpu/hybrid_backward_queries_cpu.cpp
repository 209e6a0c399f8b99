// The queries' side of hybrid_backward_walker.hpp.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/cpu/hybrid_backward_walker.hpp"

namespace hedgerow::kernels::cpu {

BackwardWalker::BackwardWalker(const HybridProblem& problem,
                               const HybridForward& forward,
                               const at::Tensor& states,
                               const at::Tensor& dy,
                               const at::Tensor& dy_linear,
                               const HybridNeeds& needs,
                               const BackwardPartials& out)
    : problem_(problem),
      forward_(forward),
      states_(states),
      has_linear_gradient_(dy_linear.defined()),
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
      q_rows_(problem.q, HybridProblem::kQueryTile),
      k_rows_(problem.k, (chunks_ + 2 * lag()) * problem.chunk()),
      v_rows_(problem.v, (chunks_ + 2 * lag()) * problem.chunk()),
      y_rows_(forward.y_saved, HybridProblem::kQueryTile),
      dy_rows_(dy, HybridProblem::kQueryTile),
      sink_k_rows_(problem.k, problem.num_sinks()),
      sink_v_rows_(problem.v, problem.num_sinks()),
      y_linear_rows_(has_linear_gradient_ ? forward.y_linear : dy, HybridProblem::kQueryTile),
      dy_linear_rows_(has_linear_gradient_ ? dy_linear : dy, HybridProblem::kQueryTile),
      map_q_(problem, problem.map_q, FeatureMapRole::kQuery, problem.tile_lanes()),
      map_k_(problem, problem.map_k, FeatureMapRole::kKey, problem.chunk_lanes()),
      totals_(static_cast<std::size_t>(problem.key_group())),
      state_(problem),
      state_gradient_(problem),
      q_transposed_(problem.shape.D * ld_),
      dn_(ld_ * width_),
      dn_linear_(has_linear_gradient_ ? ld_ * width_ : 0),
      dn_transposed_(problem.shape.D * ld_),
      phi_k_(problem.F * ld_chunk_),
      dphi_(problem.F * std::max(ld_, ld_chunk_)),
      v_transposed_(keys_side_ ? problem.shape.D * ld_chunk_ : 0),
      scores_tile_(scores_ ? (problem.num_sinks() + 2 * ld_chunk_) * ld_ : 0),
      weights_(scores_ ? (problem.num_sinks() + 2 * ld_chunk_) * ld_ : 0),
      da_((problem.num_sinks() + 2 * ld_chunk_) * ld_),
      linear_(ld_chunk_ * ld_),
      linear_transposed_(ld_ * ld_chunk_),
      dq_tile_(needs.q ? ld_ * width_ : 0),
      phi_q_(problem.key_group() * query_chunks() * tiles_per_chunk_ * problem.F * ld_),
      dphi_near_(near_linear_ ? (chunks_ + lag()) * problem.F * ld_chunk_ : 0),
      dk_(needs.k ? (chunks_ + 2 * lag()) * problem.chunk() * width_ : 0),
      dv_(needs.v ? (chunks_ + 2 * lag()) * problem.chunk() * width_ : 0),
      inverse_(problem.key_group() * query_chunks() * tiles_per_chunk_ * ld_),
      inverse_linear_(
          has_linear_gradient_ ? problem.key_group() * query_chunks() * tiles_per_chunk_ * ld_ : 0),
      dz_(problem.key_group() * query_chunks() * tiles_per_chunk_ * ld_),
      sink_dk_(needs.k ? problem.num_sinks() * width_ : 0),
      sink_dv_(needs.v ? problem.num_sinks() * width_ : 0),
      lanes_(4 * ld_) {}

void BackwardWalker::select(std::int64_t head) {
  b_ = head / problem_.key_heads;
  key_head_ = head % problem_.key_heads;
  map_k_.select_head(key_head_);
  const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv();
  sink_k_ = sink_k_rows_.rows(b_, kv_head, 0, problem_.num_sinks());
  sink_v_ = sink_v_rows_.rows(b_, kv_head, 0, problem_.num_sinks());
}

template <typename Visit>
void BackwardWalker::each_query_head(const Visit& visit) {
  for (member_ = 0; member_ < problem_.key_group(); ++member_) {
    h_ = key_head_ * problem_.key_group() + member_;
    map_q_.select_head(h_);
    gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h_] : 0.0F;
    visit();
  }
}

void BackwardWalker::read_rows(const QueryTile& tile) {
  q_ = q_rows_.rows(b_, h_, tile.begin, tile.end);
  dy_ = dy_rows_.rows(b_, h_, tile.begin, tile.end);
  y_ = y_rows_.rows(b_, h_, tile.begin, tile.end);
}

float* BackwardWalker::head_of(const at::Tensor& x, std::int64_t head) const {
  return x.data_ptr<float>() + b_ * x.stride(0) + head * x.stride(1);
}

float* BackwardWalker::partial_of(const at::Tensor& x, std::int64_t head) const {
  return x.defined() ? x.data_ptr<float>() + b_ * x.stride(0) + segment_.index * x.stride(1) +
                           head * x.stride(2)
                     : nullptr;
}

void BackwardWalker::enter(const Segment& segment) {
  const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv();
  segment_ = segment;
  const ChunkRange keys =
      tokens_of(problem_, segment.first_chunk - lag(), segment.end_chunk + lag());
  k_ = k_rows_.rows(b_, kv_head, keys.begin, keys.end);
  v_ = v_rows_.rows(b_, kv_head, keys.begin, keys.end);
}

void BackwardWalker::walk(const Segment& segment, const float* before, float* behind) {
  enter(segment);
  for (Scratch* sum : {&dphi_near_, &dk_, &dv_, &sink_dk_, &sink_dv_}) {
    sum->clear();
  }
  std::fill(totals_.begin(), totals_.end(), 0.0);
  const std::int64_t head = b_ * problem_.key_heads + key_head_;
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
  return (member_ * query_chunks() + chunk - segment_.first_chunk) * tiles_per_chunk_ +
         (query - chunk * problem_.chunk()) / HybridProblem::kQueryTile;
}

void BackwardWalker::ascend(std::int64_t chunk) {
  const std::int64_t far = chunk - problem_.state_lag();
  const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
  if (far >= 0 && (near_linear_ || flushes)) {
    key_features(problem_, map_k_, k_, chunk_range(problem_, far), phi_k_.data(), ld_chunk_);
  }
  each_query_head(
      [&] { for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far); }); });
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
  each_query_head([&] {
    for_tiles(problem_, chunk, [&](const QueryTile& tile) {
      prepare_rows(tile);
      transpose(
          q_.row(tile.begin), q_.ld, tile.queries(), problem_.shape.D, q_transposed_.data(), ld_);
      map_q_.features(q_, tile.begin, tile.queries(), q_transposed_.data(), phi_q(tile.begin), ld_);
    });
  });
}

void BackwardWalker::prepare_rows(const QueryTile& tile) {
  read_rows(tile);
  const std::int64_t n = tile.queries();
  const float* denominator = head_of(forward_.denominator, h_) + tile.begin;
  float* rows_inverse = inverse(tile.begin);
  float* lane_dz = dz(tile.begin);
  row_dots(dy_.row(tile.begin), dy_.ld, y_.row(tile.begin), y_.ld, n, problem_.shape.D, lane_dz);
  for (std::int64_t i = 0; i < n; ++i) {
    rows_inverse[i] = 1.0F / denominator[i];
    lane_dz[i] *= -rows_inverse[i];
  }
  if (has_linear_gradient_) {
    const std::int64_t D = problem_.shape.D;
    const float* mass = head_of(forward_.linear_mass, h_) + tile.begin;
    float* of_linear = inverse_linear(tile.begin);
    float* deltas = lanes_.data() + 3 * ld_;
    const Rows y_linear = y_linear_rows_.rows(b_, h_, tile.begin, tile.end);
    dy_linear_ = dy_linear_rows_.rows(b_, h_, tile.begin, tile.end);
    row_dots(dy_linear_.row(tile.begin),
             dy_linear_.ld,
             y_linear.row(tile.begin),
             y_linear.ld,
             n,
             D,
             deltas);
    for (std::int64_t i = 0; i < n; ++i) {
      of_linear[i] = mass[i] > 0.0F ? 1.0F / mass[i] : 0.0F;
      lane_dz[i] -= of_linear[i] * deltas[i];
    }
  }
  scale_gradients(tile);
  transpose(dn_.data(), width_, n, problem_.shape.D, dn_transposed_.data(), ld_);
}

void BackwardWalker::scale_gradients(const QueryTile& tile) {
  const std::int64_t D = problem_.shape.D, n = tile.queries();
  scale_rows(dy_.row(tile.begin), dy_.ld, inverse(tile.begin), n, D, dn_.data(), width_);
  if (has_linear_gradient_) {
    scale_rows(dy_linear_.row(tile.begin),
               dy_linear_.ld,
               inverse_linear(tile.begin),
               n,
               D,
               dn_linear_.data(),
               width_);
    add_floats(dn_.data(), dn_linear_.data(), n * width_, dn_.data());
  }
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
        totals_[static_cast<std::size_t>(member_)] += static_cast<double>(totals[i]);
      }
      map_q_.backward(phi,
                      dphi_.data(),
                      ld_,
                      q_,
                      tile.begin,
                      n,
                      partial_of(out_.layer_q, h_),
                      partial_of(out_.bias_q, h_),
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
  const std::int64_t sinks = scores_ ? tile.num_sinks : 0;
  if (rows == 0) {
    return;
  }
  const auto gradients =
      [&](const float* values, std::int64_t ld_values, std::int64_t count, float* out) {
        multiply(problem_.products,
                 {count, n, problem_.shape.D},
                 as_stored(values, ld_values),
                 {dn_transposed_.data(), ld_},
                 out,
                 ld_,
                 false);
      };
  float* da = da_.data() + sinks * ld_;
  if (sinks > 0) {
    gradients(sink_v_.row(0), sink_v_.ld, sinks, da_.data());
  }
  gradients(v_.row(tile.keys_begin), v_.ld, rows, da);
  add_outer(da_.data(), ld_, sinks + rows, lanes, nullptr, dz(tile.begin));
  if (tile.linear_rows() > 0) {
    std::copy(da, da + tile.linear_rows() * ld_, linear_.data());
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
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n);
  float* maxima = lanes_.data() + 2 * ld_;
  float* sums = lanes_.data() + 3 * ld_;
  const float scale = 1.0F / std::sqrt(static_cast<float>(D));
  if (problem_.windowed()) {
    const auto score = [&](const Rows& keys, std::int64_t first, std::int64_t rows, float* out) {
      multiply(problem_.products,
               {rows, n, D},
               as_stored(keys.row(first), keys.ld),
               {q_transposed_.data(), ld_},
               out,
               ld_,
               false);
    };
    if (tile.num_sinks > 0) {
      score(sink_k_, 0, tile.num_sinks, scores_tile_.data());
    }
    score(k_, tile.keys_begin, tile.keys(), scores_tile_.data() + tile.num_sinks * ld_);
    window_weights(scores_tile_.data(),
                   ld_,
                   tile.window_rows(),
                   lanes,
                   tile.window_mask,
                   scale,
                   gate_,
                   weights_.data(),
                   maxima,
                   sums);
    window_gradient(scores_tile_.data(),
                    weights_.data(),
                    ld_,
                    tile.window_rows(),
                    lanes,
                    maxima,
                    totals,
                    scale,
                    da_.data());
    if (needs_.q) {
      const auto join = [&](const Rows& keys, std::int64_t first, std::int64_t rows, float* da) {
        multiply(problem_.products,
                 {n, D, rows},
                 transposed(da, ld_),
                 keys.right(first),
                 dq_tile_.data(),
                 width_,
                 true);
      };
      if (tile.num_sinks > 0) {
        join(sink_k_, 0, tile.num_sinks, da_.data());
      }
      join(k_, tile.keys_begin, tile.keys(), da_.data() + tile.num_sinks * ld_);
    }
    if (needs_.k) {
      to_keys(tile, da_.data(), q_.right(tile.begin), sink_dk_, dk_);
    }
  }
  if (needs_.v) {
    value_side(tile);
  }
}

void BackwardWalker::value_side(const QueryTile& tile) {
  const std::int64_t n = tile.queries(), rows = tile.linear_rows();
  float* keys_weights = weights_.data() + tile.num_sinks * ld_;
  if (rows > 0) {
    float* linear = problem_.windowed() ? linear_.data() : keys_weights;
    multiply(problem_.products,
             {rows, n, problem_.F},
             transposed(phi_k_.data(), ld_chunk_),
             {phi_q(tile.begin), ld_},
             linear,
             ld_,
             false);
    mask_linear(linear, ld_, rows, padded(n), tile.linear_mask, lanes_.data() + ld_);
    if (problem_.windowed()) {
      add_tile(keys_weights, linear, ld_, rows, padded(n));
    }
  }
  to_keys(tile, weights_.data(), {dn_.data(), width_}, sink_dv_, dv_);
}

void BackwardWalker::to_keys(
    const QueryTile& tile, const float* pairs, Right queries, Scratch& of_sinks, Scratch& of_keys) {
  const auto join = [&](const float* rows, std::int64_t count, float* out) {
    multiply(problem_.products,
             {count, problem_.shape.D, tile.queries()},
             as_stored(rows, ld_),
             queries,
             out,
             width_,
             true);
  };
  // The chunk behind the segment gives the sinks their share where it is an own one.
  if (tile.num_sinks > 0 && is_own(tile.begin / problem_.chunk())) {
    join(pairs, tile.num_sinks, of_sinks.data());
  }
  join(pairs + tile.num_sinks * ld_, tile.keys(), key_row(of_keys, tile.keys_begin));
}

}  // namespace hedgerow::kernels::cpu
