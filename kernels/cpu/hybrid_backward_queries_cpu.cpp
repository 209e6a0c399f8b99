// The queries' side of hybrid_backward_walker.hpp.
#include <ATen/ATen.h>

#include <cmath>

#include "kernels/cpu/hybrid_backward_walker.hpp"

namespace hedgerow::kernels::cpu {

WalkerSizes::WalkerSizes(const TiledProblem& problem, const HybridNeeds& needs)
    : D(problem.shape.D),
      F(problem.F),
      sinks(problem.num_sinks()),
      ld(problem.tile_lanes()),
      ld_chunk(problem.chunk_lanes()),
      width(padded(problem.shape.D)),
      chunks(std::min(problem.chunks_per_segment(), problem.num_chunks())),
      lag(problem.state_lag()),
      tiles_per_chunk((problem.chunk() + TiledProblem::kQueryTile - 1) / TiledProblem::kQueryTile),
      tiles(problem.key_group() * query_chunks() * tiles_per_chunk),
      key_rows((chunks + 2 * lag) * problem.chunk()),
      near_linear(problem.options.window != WindowLayout::kTerraced),
      scores(needs.q || needs.k || needs.v),
      keys_side(needs.k || needs.v || needs.map_k),
      dq(needs.q),
      dk(needs.k),
      dv(needs.v) {}

BackwardWalker::BackwardWalker(const TiledProblem& problem,
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
      sizes_(problem, needs),
      q_rows_(problem.q, TiledProblem::kQueryTile),
      k_rows_(problem.k, sizes_.key_rows),
      v_rows_(problem.v, sizes_.key_rows),
      y_rows_(forward.y_saved, TiledProblem::kQueryTile),
      dy_rows_(dy, TiledProblem::kQueryTile),
      sink_k_rows_(problem.k, problem.num_sinks()),
      sink_v_rows_(problem.v, problem.num_sinks()),
      map_q_(problem, problem.map_q, problem.tile_lanes()),
      map_k_(problem, problem.map_k, problem.chunk_lanes()),
      totals_(static_cast<std::size_t>(problem.key_group())),
      state_(problem),
      state_gradient_(problem),
      scratch_(sizes_) {}

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
  for (Scratch* sum :
       {&scratch_.dphi_near, &scratch_.dk, &scratch_.dv, &scratch_.sink_dk, &scratch_.sink_dv}) {
    sum->clear();
  }
  std::fill(totals_.begin(), totals_.end(), 0.0);
  const std::int64_t head = b_ * problem_.key_heads + key_head_;
  state_.begin(HeadBorders(states_, head, /*descends=*/false).before(segment.index));
  for (std::int64_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
    ascend(chunk);
  }
  if (sizes_.keys_side) {
    const std::int64_t last = std::min(segment.end_chunk + lag() + 1, problem_.num_chunks());
    for (std::int64_t chunk = segment.end_chunk; chunk < last; ++chunk) {
      const bool meets_own_keys = chunk < segment.end_chunk + lag();
      if (meets_own_keys && (sizes_.near_linear || sizes_.scores)) {
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
  return (member_ * sizes_.query_chunks() + chunk - segment_.first_chunk) * sizes_.tiles_per_chunk +
         (query - chunk * problem_.chunk()) / TiledProblem::kQueryTile;
}

void BackwardWalker::ascend(std::int64_t chunk) {
  const std::int64_t far = chunk - problem_.state_lag();
  const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
  if (far >= 0 && (sizes_.near_linear || flushes)) {
    key_features(
        problem_, map_k_, k_, chunk_range(problem_, far), scratch_.phi_k.data(), sizes_.ld_chunk);
  }
  each_query_head(
      [&] { for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far); }); });
  if (flushes) {
    const ChunkRange keys = chunk_range(problem_, far);
    add_row_sums(scratch_.phi_k.data(),
                 sizes_.ld_chunk,
                 problem_.F,
                 keys.tokens(),
                 nullptr,
                 state_.own_column());
    multiply(problem_.products,
             {problem_.F, problem_.shape.D, keys.tokens()},
             as_stored(scratch_.phi_k.data(), sizes_.ld_chunk),
             v_.right(keys.begin),
             state_.own_matrix(),
             sizes_.width,
             true);
    state_.settle();
  }
}

void BackwardWalker::prepare_queries(std::int64_t chunk) {
  each_query_head([&] {
    for_tiles(problem_, chunk, [&](const QueryTile& tile) {
      prepare_rows(tile);
      transpose(q_.row(tile.begin),
                q_.ld,
                tile.queries(),
                problem_.shape.D,
                scratch_.q_transposed.data(),
                sizes_.ld);
      map_q_.features(q_,
                      tile.begin,
                      tile.queries(),
                      scratch_.q_transposed.data(),
                      phi_q(tile.begin),
                      sizes_.ld);
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
  scale_gradients(tile);
  transpose(scratch_.dn.data(),
            sizes_.width,
            n,
            problem_.shape.D,
            scratch_.dn_transposed.data(),
            sizes_.ld);
}

void BackwardWalker::scale_gradients(const QueryTile& tile) {
  const std::int64_t D = problem_.shape.D, n = tile.queries();
  scale_rows(
      dy_.row(tile.begin), dy_.ld, inverse(tile.begin), n, D, scratch_.dn.data(), sizes_.width);
}

void BackwardWalker::walk_tile(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n);
  const bool linear = far > 0 || tile.linear_rows() > 0, own = is_own(far + lag());
  float* totals = scratch_.lanes.data();
  std::fill(totals, totals + sizes_.ld, 0.0F);
  prepare_rows(tile);
  if (linear || sizes_.scores) {
    transpose(q_.row(tile.begin), q_.ld, n, D, scratch_.q_transposed.data(), sizes_.ld);
  }
  pair_gradients(tile);
  if (needs_.q) {
    std::fill(scratch_.dq_tile.data(), scratch_.dq_tile.data() + n * sizes_.width, 0.0F);
  }
  if (linear) {
    float* phi = phi_q(tile.begin);
    map_q_.features(q_, tile.begin, n, scratch_.q_transposed.data(), phi, sizes_.ld);
    query_features(tile, far);
    column_dots(phi, scratch_.dphi.data(), sizes_.ld, problem_.F, lanes, totals);
    for (std::int64_t i = 0; i < lanes; ++i) {
      totals[i] = -totals[i];
    }
    if (own) {
      for (std::int64_t i = 0; i < n; ++i) {
        totals_[static_cast<std::size_t>(member_)] += static_cast<double>(totals[i]);
      }
      map_q_.backward(phi,
                      scratch_.dphi.data(),
                      sizes_.ld,
                      q_,
                      tile.begin,
                      n,
                      partial_of(out_.layer_q, h_),
                      partial_of(out_.bias_q, h_),
                      needs_.q ? scratch_.dq_tile.data() : nullptr,
                      sizes_.width);
    }
  }
  if (sizes_.scores) {
    window_side(tile, totals);
  }
  if (needs_.q && own) {
    const at::Tensor& dq = out_.dq;
    const std::int64_t offset = b_ * dq.stride(0) + h_ * dq.stride(1) + tile.begin * dq.stride(2);
    auto* to =
        static_cast<char*>(dq.data_ptr()) + offset * static_cast<std::int64_t>(dq.element_size());
    narrow_rows(
        scratch_.dq_tile.data(), sizes_.width, n, D, nullptr, to, dq.scalar_type(), dq.stride(2));
  }
}

void BackwardWalker::pair_gradients(const QueryTile& tile) {
  const std::int64_t n = tile.queries(), lanes = padded(n);
  const std::int64_t rows = sizes_.scores ? tile.keys() : tile.linear_rows();
  const std::int64_t sinks = sizes_.scores ? tile.num_sinks : 0;
  if (rows == 0) {
    return;
  }
  const auto gradients =
      [&](const float* values, std::int64_t ld_values, std::int64_t count, float* out) {
        multiply(problem_.products,
                 {count, n, problem_.shape.D},
                 as_stored(values, ld_values),
                 {scratch_.dn_transposed.data(), sizes_.ld},
                 out,
                 sizes_.ld,
                 false);
      };
  float* da = scratch_.da.data() + sinks * sizes_.ld;
  if (sinks > 0) {
    gradients(sink_v_.row(0), sink_v_.ld, sinks, scratch_.da.data());
  }
  gradients(v_.row(tile.keys_begin), v_.ld, rows, da);
  add_outer(scratch_.da.data(), sizes_.ld, sinks + rows, lanes, nullptr, dz(tile.begin));
  if (tile.linear_rows() > 0) {
    std::copy(da, da + tile.linear_rows() * sizes_.ld, scratch_.linear.data());
    mask_linear(scratch_.linear.data(),
                sizes_.ld,
                tile.linear_rows(),
                lanes,
                tile.linear_mask,
                scratch_.lanes.data() + sizes_.ld);
  }
}

void BackwardWalker::query_features(const QueryTile& tile, std::int64_t far) {
  const std::int64_t D = problem_.shape.D, F = problem_.F, n = tile.queries(), lanes = padded(n);
  float* dphi = scratch_.dphi.data();
  if (far > 0) {
    multiply(problem_.products,
             {F, n, D},
             as_stored(state_.matrix(), sizes_.width),
             {scratch_.dn_transposed.data(), sizes_.ld},
             dphi,
             sizes_.ld,
             false);
    add_outer(dphi, sizes_.ld, F, lanes, state_.column(), dz(tile.begin));
  } else {
    std::fill(dphi, dphi + F * sizes_.ld, 0.0F);
  }
  const std::int64_t rows = tile.linear_rows();
  if (rows == 0) {
    return;
  }
  multiply(problem_.products,
           {F, n, rows},
           as_stored(scratch_.phi_k.data(), sizes_.ld_chunk),
           {scratch_.linear.data(), sizes_.ld},
           dphi,
           sizes_.ld,
           true);
  if (sizes_.keys_side) {
    transpose(scratch_.linear.data(),
              sizes_.ld,
              rows,
              n,
              scratch_.linear_transposed.data(),
              sizes_.ld_chunk);
    multiply(problem_.products,
             {F, rows, n},
             as_stored(phi_q(tile.begin), sizes_.ld),
             {scratch_.linear_transposed.data(), sizes_.ld_chunk},
             dphi_near(far),
             sizes_.ld_chunk,
             true);
  }
}

void BackwardWalker::window_side(const QueryTile& tile, const float* totals) {
  const std::int64_t D = problem_.shape.D, n = tile.queries(), lanes = padded(n);
  float* maxima = scratch_.lanes.data() + 2 * sizes_.ld;
  float* sums = scratch_.lanes.data() + 3 * sizes_.ld;
  float* gates = scratch_.lanes.data() + 4 * sizes_.ld;
  const float scale = 1.0F / std::sqrt(static_cast<float>(D));
  if (problem_.windowed()) {
    const auto score = [&](const Rows& keys, std::int64_t first, std::int64_t rows, float* out) {
      multiply(problem_.products,
               {rows, n, D},
               as_stored(keys.row(first), keys.ld),
               {scratch_.q_transposed.data(), sizes_.ld},
               out,
               sizes_.ld,
               false);
    };
    if (tile.num_sinks > 0) {
      score(sink_k_, 0, tile.num_sinks, scratch_.scores_tile.data());
    }
    score(
        k_, tile.keys_begin, tile.keys(), scratch_.scores_tile.data() + tile.num_sinks * sizes_.ld);
    query_gates(problem_, tile, gate_, gates);
    window_weights(scratch_.scores_tile.data(),
                   sizes_.ld,
                   tile.window_rows(),
                   lanes,
                   tile.window_mask,
                   scale,
                   gates,
                   scratch_.weights.data(),
                   maxima,
                   sums);
    window_gradient(scratch_.scores_tile.data(),
                    scratch_.weights.data(),
                    sizes_.ld,
                    tile.window_rows(),
                    lanes,
                    maxima,
                    totals,
                    scale,
                    scratch_.da.data());
    if (needs_.q) {
      const auto join = [&](const Rows& keys, std::int64_t first, std::int64_t rows, float* da) {
        multiply(problem_.products,
                 {n, D, rows},
                 transposed(da, sizes_.ld),
                 keys.right(first),
                 scratch_.dq_tile.data(),
                 sizes_.width,
                 true);
      };
      if (tile.num_sinks > 0) {
        join(sink_k_, 0, tile.num_sinks, scratch_.da.data());
      }
      join(k_, tile.keys_begin, tile.keys(), scratch_.da.data() + tile.num_sinks * sizes_.ld);
    }
    if (needs_.k) {
      to_keys(tile, scratch_.da.data(), q_.right(tile.begin), scratch_.sink_dk, scratch_.dk);
    }
  }
  if (needs_.v) {
    value_side(tile);
  }
}

void BackwardWalker::value_side(const QueryTile& tile) {
  const std::int64_t n = tile.queries(), rows = tile.linear_rows();
  float* keys_weights = scratch_.weights.data() + tile.num_sinks * sizes_.ld;
  if (rows > 0) {
    float* linear = problem_.windowed() ? scratch_.linear.data() : keys_weights;
    multiply(problem_.products,
             {rows, n, problem_.F},
             transposed(scratch_.phi_k.data(), sizes_.ld_chunk),
             {phi_q(tile.begin), sizes_.ld},
             linear,
             sizes_.ld,
             false);
    mask_linear(
        linear, sizes_.ld, rows, padded(n), tile.linear_mask, scratch_.lanes.data() + sizes_.ld);
    if (problem_.windowed()) {
      add_tile(keys_weights, linear, sizes_.ld, rows, padded(n));
    }
  }
  to_keys(tile,
          scratch_.weights.data(),
          {scratch_.dn.data(), sizes_.width},
          scratch_.sink_dv,
          scratch_.dv);
}

void BackwardWalker::to_keys(
    const QueryTile& tile, const float* pairs, Right queries, Scratch& of_sinks, Scratch& of_keys) {
  const auto join = [&](const float* rows, std::int64_t count, float* out) {
    multiply(problem_.products,
             {count, problem_.shape.D, tile.queries()},
             as_stored(rows, sizes_.ld),
             queries,
             out,
             sizes_.width,
             true);
  };
  // The chunk behind the segment gives the sinks their share where it is an own one.
  if (tile.num_sinks > 0 && is_own(tile.begin / problem_.chunk())) {
    join(pairs, tile.num_sinks, of_sinks.data());
  }
  join(pairs + tile.num_sinks * sizes_.ld, tile.keys(), key_row(of_keys, tile.keys_begin));
}

}  // namespace hedgerow::kernels::cpu
