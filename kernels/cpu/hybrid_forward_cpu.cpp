// y and Z of the hybrid, one segment of a (batch, key head) at a time, for all query heads that
// share its map. For each chunk c and query head: tiles of queries against the sinks and the keys
// of chunks c - 1 and c (the window, and the sliding layout's near linear pairs), plus phi_q (S, z)
// for everything before; then (S, z) += phi_k [v, 1] of chunk c - 1. Per query head T D (8 W + 2 f
// + 2 F) and per key head T D (2 f + 2 F) FLOPs beside the exponentials, sums in fp32. Scratch of a
// thread: one tile, one chunk of features, (S, z), and a segment's widened rows of k and v where
// they are bf16. With a recall cache its rows stand behind the sinks', what it holds of a chunk is
// not folded with the chunk, and what a choice drops is folded before the first chunk of queries
// for which that choice counts.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/cpu/hybrid_segments_cpu.hpp"
#include "kernels/cpu/recall_cpu.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::cpu {
namespace {

class ForwardWalker {
 public:
  ForwardWalker(const TiledProblem& problem, const HybridForward& out)
      : problem_(problem),
        out_(out),
        max_rows_((problem.chunks_per_segment() + problem.state_lag()) * problem.chunk()),
        q_rows_(problem.q, TiledProblem::kQueryTile),
        k_rows_(problem.k, max_rows_),
        v_rows_(problem.v.defined() ? problem.v : problem.k, max_rows_),
        sink_k_rows_(problem.k, problem.num_sinks()),
        sink_v_rows_(problem.v.defined() ? problem.v : problem.k, problem.num_sinks()),
        recall_k_rows_(problem.k, 1),
        recall_v_rows_(problem.v.defined() ? problem.v : problem.k, 1),
        max_recalled_(problem.recalled.defined() ? problem.options.recall_cache : 0),
        map_q_(problem, problem.map_q, problem.tile_lanes()),
        map_k_(problem, problem.map_k, std::max(problem.chunk_lanes(), padded(max_recalled_))),
        ld_(problem.tile_lanes()),
        ld_chunk_(problem.chunk_lanes()),
        q_transposed_(problem.shape.D * ld_),
        phi_q_(problem.F * ld_),
        phi_k_(problem.F * ld_chunk_),
        phi_dropped_(problem.F * padded(max_recalled_)),
        recalled_k_(max_recalled_ * padded(problem.shape.D)),
        recalled_v_(max_recalled_ * padded(problem.shape.D)),
        weights_((problem.num_sinks() + max_recalled_ + 2 * ld_chunk_) * ld_),
        linear_(ld_chunk_ * ld_),
        state_(problem),
        tile_y_(ld_ * padded(problem.shape.D)),
        lanes_(6 * ld_) {}

  void select(std::int64_t head) {
    b_ = head / problem_.key_heads;
    key_head_ = head % problem_.key_heads;
    map_k_.select_head(key_head_);
    const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv();
    sink_k_ = sink_k_rows_.rows(b_, kv_head, 0, problem_.num_sinks());
    sink_v_ = sink_v_rows_.rows(b_, kv_head, 0, problem_.num_sinks());
  }

  // The state is (S, z) of the keys of chunks before c - lag, when chunk c begins.
  void walk(const Segment& segment, const float* before, float* behind) {
    read_keys(segment.first_chunk - problem_.state_lag(), segment.end_chunk);
    state_.begin(before);
    for (std::int64_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
      fold_dropped(chunk);
      read_recalled(chunk);
      walk_chunk(chunk);
    }
    if (behind != nullptr) {
      state_.store(behind);
    }
  }

  void sum(const Segment& segment, float* own) {
    const std::int64_t lag = problem_.state_lag();
    read_keys(segment.first_chunk - lag, segment.end_chunk - lag);
    state_.begin(nullptr);
    for (std::int64_t chunk = segment.first_chunk; chunk < segment.end_chunk; ++chunk) {
      fold_dropped(chunk);
      if (chunk >= lag) {
        read_features(chunk - lag);
        flush(chunk_range(problem_, chunk - lag));
      }
    }
    state_.store_own(own);
  }

 private:
  void read_keys(std::int64_t first_chunk, std::int64_t end_chunk) {
    const ChunkRange keys = tokens_of(problem_, first_chunk, end_chunk);
    const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv();
    k_ = k_rows_.rows(b_, kv_head, keys.begin, keys.end);
    v_ = v_rows_.rows(b_, kv_head, keys.begin, keys.end);
  }

  void read_features(std::int64_t chunk) {
    key_features(problem_, map_k_, k_, chunk_range(problem_, chunk), phi_k_.data(), ld_chunk_);
    // What the choice about this chunk keeps of it is not linear.
    const std::int64_t first = chunk * problem_.chunk();
    for (const std::int64_t token : kept_by(chunk)) {
      if (token < first) continue;
      for (std::int64_t f = 0; f < problem_.F; ++f)
        phi_k_.data()[f * ld_chunk_ + token - first] = 0.0F;
    }
  }

  // The tokens that the cache of this head holds after a choice; none where there is no such one.
  [[nodiscard]] std::span<const std::int64_t> kept_by(std::int64_t choice) const {
    const at::Tensor& kept = problem_.recalled;
    if (!kept.defined() || choice < 0 || choice >= kept.size(0)) return {};
    const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv();
    const auto* first = kept.const_data_ptr<std::int64_t>() +
                        ((choice * kept.size(1) + b_) * kept.size(2) + kv_head) * max_recalled_;
    const auto* last = first + max_recalled_;
    return {std::find_if(first, last, [](std::int64_t token) { return token >= 0; }), last};
  }

  // Copies one token's key and value to row `at` of the cache's rows.
  void read_token(std::int64_t token, std::int64_t at) {
    const std::int64_t kv_head = key_head_ / problem_.key_heads_of_kv(), D = problem_.shape.D,
                       width = padded(D);
    const Rows k = recall_k_rows_.rows(b_, kv_head, token, token + 1);
    std::copy_n(k.row(token), D, recalled_k_.data() + at * width);
    const Rows v = recall_v_rows_.rows(b_, kv_head, token, token + 1);
    std::copy_n(v.row(token), D, recalled_v_.data() + at * width);
  }

  void read_recalled(std::int64_t chunk) {
    num_recalled_ = 0;
    for (const std::int64_t token : kept_by(choice_of_chunk(problem_, chunk))) {
      read_token(token, num_recalled_++);
    }
  }

  // (S, z) += phi_k [v, 1] of what the choice of this chunk dropped of the one before.
  void fold_dropped(std::int64_t chunk) {
    const std::int64_t choice = choice_of_chunk(problem_, chunk), ld = padded(max_recalled_);
    const auto now = kept_by(choice), before = kept_by(choice - 1);
    std::int64_t dropped = 0;
    for (const std::int64_t token : before) {
      if (!std::binary_search(now.begin(), now.end(), token)) read_token(token, dropped++);
    }
    if (dropped == 0) return;
    map_k_.features({recalled_k_.data(), padded(problem_.shape.D)},
                    0,
                    dropped,
                    nullptr,
                    phi_dropped_.data(),
                    ld);
    add_to_state(phi_dropped_.data(), ld, dropped, {recalled_v_.data(), padded(problem_.shape.D)});
  }

  void walk_chunk(std::int64_t chunk) {
    const std::int64_t far = chunk - problem_.state_lag();
    const bool near_linear = far >= 0 && problem_.options.window != WindowLayout::kTerraced;
    const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
    if (near_linear || flushes) {
      read_features(far);
    }
    kept_near_ = {};
    if (problem_.options.window == WindowLayout::kSliding) kept_near_ = kept_by(far);
    for (std::int64_t r = 0; r < problem_.key_group(); ++r) {
      h_ = key_head_ * problem_.key_group() + r;
      map_q_.select_head(h_);
      gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h_] : 0.0F;
      for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far > 0); });
    }
    if (flushes) {
      flush(chunk_range(problem_, far));
    }
  }

  void flush(ChunkRange keys) {
    add_to_state(phi_k_.data(), ld_chunk_, keys.tokens(), v_.right(keys.begin));
  }

  // (S, z) += phi_k [v, 1].
  void add_to_state(const float* phi, std::int64_t ld, std::int64_t tokens, Right values) {
    add_row_sums(phi, ld, problem_.F, tokens, nullptr, state_.own_column());
    if (problem_.v.defined()) {
      multiply(problem_.products,
               {problem_.F, problem_.shape.D, tokens},
               as_stored(phi, ld),
               values,
               state_.own_matrix(),
               padded(problem_.shape.D),
               true);
    }
    state_.settle();
  }

  void walk_tile(const QueryTile& tile, bool has_state) {
    const std::int64_t D = problem_.shape.D, F = problem_.F, n = tile.queries(), lanes = padded(n);
    float* window_sum = lanes_.data();
    float* linear_sum = window_sum + ld_;
    float* maxima = linear_sum + ld_;
    float* gates = lanes_.data() + 5 * ld_;
    std::fill(window_sum, window_sum + 2 * ld_, 0.0F);
    const bool near_linear = tile.linear_rows() > 0;
    float* cache_weights = weights_.data() + tile.num_sinks * ld_;  // behind the sinks' rows
    float* keys_weights = cache_weights + num_recalled_ * ld_;
    q_ = q_rows_.rows(b_, h_, tile.begin, tile.end);
    transpose(q_.row(tile.begin), q_.ld, n, D, q_transposed_.data(), ld_);
    if (near_linear || has_state) {
      map_q_.features(q_, tile.begin, n, q_transposed_.data(), phi_q_.data(), ld_);
    }
    if (problem_.windowed()) {
      const float scale = 1.0F / std::sqrt(static_cast<float>(D));
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
        score(sink_k_, 0, tile.num_sinks, weights_.data());
      }
      if (num_recalled_ > 0) {
        score({recalled_k_.data(), padded(D)}, 0, num_recalled_, cache_weights);
      }
      score(k_, tile.keys_begin, tile.keys(), keys_weights);
      for (const std::int64_t token : kept_near_) {  // counted in the cache
        if (token < tile.keys_begin) continue;
        float* row = keys_weights + (token - tile.keys_begin) * ld_;
        std::fill(row, row + lanes, -std::numeric_limits<float>::infinity());
      }
      TileMask mask = tile.window_mask;
      mask.first_key -= num_recalled_;
      mask.sink_rows += num_recalled_;
      query_gates(problem_, tile, gate_, gates);
      window_weights(weights_.data(),
                     ld_,
                     num_recalled_ + tile.window_rows(),
                     lanes,
                     mask,
                     scale,
                     gates,
                     weights_.data(),
                     maxima,
                     window_sum);
    }
    if (near_linear) {
      float* target = problem_.windowed() ? linear_.data() : weights_.data();
      multiply(problem_.products,
               {tile.linear_rows(), n, F},
               transposed(phi_k_.data(), ld_chunk_),
               {phi_q_.data(), ld_},
               target,
               ld_,
               false);
      mask_linear(target, ld_, tile.linear_rows(), lanes, tile.linear_mask, linear_sum);
      if (problem_.windowed()) {
        add_tile(keys_weights, target, ld_, tile.linear_rows(), lanes);
      }
    }
    if (has_state) {
      column_sums(phi_q_.data(), ld_, F, lanes, state_.column(), linear_sum, true);
    }
    finish_tile(tile, has_state, window_sum, linear_sum);
  }

  void finish_tile(const QueryTile& tile,
                   bool has_state,
                   const float* window_sum,
                   const float* linear_sum) {
    const std::int64_t D = problem_.shape.D, n = tile.queries(), width = padded(D);
    const std::int64_t offset = (b_ * problem_.shape.H + h_) * problem_.shape.T + tile.begin;
    float* denominator = out_.denominator.data_ptr<float>() + offset;
    float* linear_mass = out_.linear_mass.data_ptr<float>() + offset;
    float* inverse = lanes_.data() + 3 * ld_;
    const float epsilon = problem_.windowed() ? 0.0F : static_cast<float>(kLinearEpsilon);
    for (std::int64_t i = 0; i < n; ++i) {
      linear_mass[i] = linear_sum[i];
      denominator[i] = window_sum[i] + linear_sum[i] + epsilon;
      inverse[i] = 1.0F / denominator[i];
    }
    if (!problem_.v.defined()) {
      return;
    }
    std::int64_t row = 0;  // of the weights
    const auto add_values = [&](std::int64_t rows, Right values) {
      multiply(problem_.products,
               {n, D, rows},
               transposed(weights_.data() + row * ld_, ld_),
               values,
               tile_y_.data(),
               width,
               row > 0);
      row += rows;
    };
    if (tile.num_sinks > 0) add_values(tile.num_sinks, sink_v_.right(0));
    if (num_recalled_ > 0) add_values(num_recalled_, {recalled_v_.data(), width});
    add_values(tile.keys(), v_.right(tile.keys_begin));
    if (has_state) {
      multiply(problem_.products,
               {n, D, problem_.F},
               transposed(phi_q_.data(), ld_),
               {state_.matrix(), width},
               tile_y_.data(),
               width,
               true);
    }
    store_rows(out_.y, tile, tile_y_, inverse);
    if (out_.y_saved.defined() && !out_.y_saved.is_same(out_.y)) {
      store_rows(out_.y_saved, tile, tile_y_, inverse);
    }
  }

  void store_rows(const at::Tensor& y, const QueryTile& tile, Scratch& rows, const float* inverse) {
    const std::int64_t offset = b_ * y.stride(0) + h_ * y.stride(1) + tile.begin * y.stride(2);
    auto* to =
        static_cast<char*>(y.data_ptr()) + offset * static_cast<std::int64_t>(y.element_size());
    narrow_rows(rows.data(),
                padded(problem_.shape.D),
                tile.queries(),
                problem_.shape.D,
                inverse,
                to,
                y.scalar_type(),
                y.stride(2));
  }

  const TiledProblem& problem_;
  const HybridForward& out_;
  std::int64_t max_rows_;
  HeadRows q_rows_, k_rows_, v_rows_, sink_k_rows_, sink_v_rows_, recall_k_rows_, recall_v_rows_;
  std::int64_t max_recalled_, num_recalled_ = 0;  // keys in the cache: at most, of this chunk
  std::span<const std::int64_t> kept_near_ = {};  // of them those that may be in a sliding window
  TileMap map_q_, map_k_;
  std::int64_t ld_, ld_chunk_, b_ = 0, key_head_ = 0, h_ = 0;
  Rows q_, k_, v_, sink_k_, sink_v_;  // q_: of a tile
  float gate_ = 0;
  Scratch q_transposed_, phi_q_, phi_k_, phi_dropped_, recalled_k_, recalled_v_, weights_, linear_;
  SegmentState state_;
  Scratch tile_y_, lanes_;
};

}  // namespace

TiledProblem on_cpu(const kernels::HybridProblem& problem) {
  // The features of ELU+1 are large, so the linear side's sum, from which a window factor has its
  // gradient, cancels: in bf16 that gradient was off by a fifth.
  const bool cancels = problem.options.row().fp32_products;
  const Products products = cancels ? Products::kFloat : products_for(problem.q.scalar_type());
  return {problem, products, {}};
}

at::Tensor sum_states(const TiledProblem& problem) {
  const at::Tensor states = make_borders(problem);
  if (states.defined()) {
    const HybridForward nothing;
    sum_segments(problem, states, /*descends=*/false, 0, states.size(0), [&] {
      return ForwardWalker(problem, nothing);
    });
  }
  return states;
}

HybridForward hybrid_forward_cpu(const TiledProblem& given, bool keep_for_backward) {
  TiledProblem problem = given;
  if (problem.v.defined()) problem.recalled = recall_choices(problem);
  HybridForward out = make_hybrid_forward(problem, keep_for_backward);
  const at::Tensor states = make_borders(problem);
  walk_segments(problem, states, /*descends=*/false, [&] { return ForwardWalker(problem, out); });
  out.saved = {states};
  return out;
}

}  // namespace hedgerow::kernels::cpu
