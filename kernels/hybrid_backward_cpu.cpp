// Gradients of the hybrid. With r = 1 / Z, delta = dy.y, a_ij the weight (p or l) of pair (i, j):
//   da_ij = r_i (dy_i.v_j - delta_i)                    dv_j = sum_i a_ij r_i dy_i
//   ds_ij = p_ij da_ij - [j at the maximum] t_i / ties,   t_i = sum_window p_ij da_ij: the maximum
//   is part of the model dphi_q_i = sum_j da_ij phi_k_j,  dphi_k_j = sum_i da_ij phi_q_i   (through
//   (S, z) and its gradient outside the tile)
// y does not change when p and l are scaled together, so t_i = -phi_q_i.dphi_q_i: the window
// factor's gradient (1 - g) sum_i t_i and the maximum's come without the window's scores, and
// without their cancellation.
//
// Two walks a head: ascending with (S, z) as in the forward (queries' side), descending with (dS,
// dz) (keys' side). Nothing of size T was saved but y and Z; features and scores are computed
// again.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/hybrid_head_cpu.hpp"

namespace hedgerow::kernels::cpu {
namespace {

// Per-head partial results, written by one task each and folded in a fixed order afterwards.
struct Partials {
  at::Tensor dq;                // [B, H, T, D] of q's dtype: final
  at::Tensor dk, dv;            // [B, H, T, D] fp32, before the fold over the group
  at::Tensor layer_q, layer_k;  // [B, H, f, padded(D)]
  at::Tensor bias_q, bias_k;    // [B, H, f]
  at::Tensor window_factors;    // [B, H]
};

float* head_of(const at::Tensor& x, std::int64_t b, std::int64_t h) {
  return x.defined() ? x.data_ptr<float>() + b * x.stride(0) + h * x.stride(1) : nullptr;
}

class BackwardHead {
 public:
  BackwardHead(const HybridProblem& problem,
               const HybridForward& forward,
               const at::Tensor& dy,
               const HybridNeeds& needs,
               const Partials& out)
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
        y_rows_(forward.y_fp32),
        dy_rows_(dy),
        map_q_(problem, problem.map_q, problem.tile_lanes()),
        map_k_(problem, problem.map_k, problem.chunk_lanes()),
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

  void run(std::int64_t b, std::int64_t h) {
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

 private:
  float* phi_q(std::int64_t query) { return phi_q_.data() + tile_index(query) * problem_.F * ld_; }
  float* dz(std::int64_t query) { return dz_.data() + tile_index(query) * ld_; }
  std::int64_t tile_index(std::int64_t query) const {
    const std::int64_t chunk = query / problem_.chunk();
    return chunk * tiles_per_chunk_ +
           (query - chunk * problem_.chunk()) / HybridProblem::kQueryTile;
  }
  float* dphi_near(std::int64_t chunk) {
    return dphi_near_.data() + chunk * problem_.F * ld_chunk_;
  }

  template <typename Visit>
  void for_tiles(std::int64_t chunk, const Visit& visit) {
    const ChunkRange range = chunk_range(problem_, chunk);
    for (std::int64_t begin = range.begin; begin < range.end; begin += HybridProblem::kQueryTile) {
      visit(query_tile(problem_, begin));
    }
  }

  // The queries' side of one chunk, then (S, z) += phi_k [v, 1] of the chunk that leaves the tiles.
  void ascend(std::int64_t chunk) {
    const std::int64_t far = chunk - problem_.state_lag();
    const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
    if (far >= 0 && (near_linear_ || flushes)) {
      const ChunkRange keys = chunk_range(problem_, far);
      map_k_.features(k_, keys.begin, keys.tokens(), nullptr, phi_k_.data(), ld_chunk_);
    }
    for_tiles(chunk, [&](const QueryTile& tile) { walk_tile(tile, far); });
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

  // dn = r dy natural and transposed, and dz = -r delta a lane.
  void prepare_rows(const QueryTile& tile) {
    const std::int64_t n = tile.queries();
    const float* denominator = head_of(forward_.denominator, b_, h_) + tile.begin;
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

  void walk_tile(const QueryTile& tile, std::int64_t far) {
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
                      head_of(out_.layer_q, b_, h_),
                      head_of(out_.bias_q, b_, h_),
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

  // da of the tile's pairs: all rows for the window's scores, else the rows that hold linear pairs,
  // which are also copied, masked, to linear_.
  void pair_gradients(const QueryTile& tile) {
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

  // dphi_ = dphi_q of the tile; and the tile's own pairs' share of dphi_k.
  void query_features(const QueryTile& tile, std::int64_t far) {
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

  // dq, dk and dv of the tile's pairs.
  void window_side(const QueryTile& tile, const float* totals) {
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
      window_gradient(scores_tile_.data(),
                      weights_.data(),
                      ld_,
                      keys,
                      lanes,
                      maxima,
                      totals,
                      scale,
                      da_.data());
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

  // dv += a^T dn over the tile's pairs.
  void value_side(const QueryTile& tile) {
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

  // The keys' side of one chunk, once the first chunk of queries that sees it through the state has
  // joined (dS, dz).
  void descend(std::int64_t chunk) {
    const std::int64_t F = problem_.F, D = problem_.shape.D;
    const bool has_state = chunk + problem_.state_lag() + 1 < problem_.num_chunks();
    const bool near = near_linear_ && chunk + problem_.state_lag() < problem_.num_chunks();
    if (has_state) {
      join_queries(chunk + problem_.state_lag() + 1);
    }
    if (has_state || near) {
      const ChunkRange keys = chunk_range(problem_, chunk);
      const std::int64_t tokens = keys.tokens();
      float* dphi = near_linear_ ? dphi_near(chunk) : dphi_.data();
      if (!near_linear_) {
        std::fill(dphi, dphi + F * ld_chunk_, 0.0F);
      }
      map_k_.features(k_, keys.begin, tokens, nullptr, phi_k_.data(), ld_chunk_);
      if (has_state) {
        transpose(v_.row(keys.begin), v_.ld, tokens, D, v_transposed_.data(), ld_chunk_);
        multiply(problem_.products,
                 {F, tokens, D},
                 as_stored(state_.data(), width_),
                 {v_transposed_.data(), ld_chunk_},
                 dphi,
                 ld_chunk_,
                 true);
        add_columns(dphi, ld_chunk_, F, padded(tokens), state_sum_.data());
        if (needs_.v) {
          multiply(problem_.products,
                   {tokens, D, F},
                   transposed(phi_k_.data(), ld_chunk_),
                   {state_.data(), width_},
                   dv_.data() + keys.begin * width_,
                   width_,
                   true);
        }
      }
      map_k_.backward(phi_k_.data(),
                      dphi,
                      ld_chunk_,
                      k_,
                      keys.begin,
                      tokens,
                      head_of(out_.layer_k, b_, h_),
                      head_of(out_.bias_k, b_, h_),
                      needs_.k ? dk_.data() + keys.begin * width_ : nullptr,
                      width_);
    }
  }

  // dS += phi_q^T dn, dz += phi_q^T (-r delta), over one chunk of queries.
  void join_queries(std::int64_t chunk) {
    for_tiles(chunk, [&](const QueryTile& tile) {
      const std::int64_t D = problem_.shape.D, n = tile.queries();
      const float* phi = phi_q(tile.begin);
      scale_rows(
          dy_.row(tile.begin), dy_.ld, inverse_.data() + tile.begin, n, D, dn_.data(), width_);
      multiply(problem_.products,
               {problem_.F, D, n},
               as_stored(phi, ld_),
               {dn_.data(), width_},
               state_.data(),
               width_,
               true);
      add_row_sums(phi, ld_, problem_.F, n, dz(tile.begin), state_sum_.data());
    });
  }

  void store_head() {
    const std::int64_t T = problem_.shape.T, D = problem_.shape.D;
    if (needs_.k) {
      narrow_rows(dk_.data(), width_, T, D, nullptr, head_of(out_.dk, b_, h_), at::kFloat, D);
    }
    if (needs_.v) {
      narrow_rows(dv_.data(), width_, T, D, nullptr, head_of(out_.dv, b_, h_), at::kFloat, D);
    }
    if (needs_.window_factors) {
      *head_of(out_.window_factors, b_, h_) =
          static_cast<float>((1.0 - static_cast<double>(gate_)) * total_);
    }
  }

  const HybridProblem& problem_;
  const HybridForward& forward_;
  const HybridNeeds& needs_;
  const Partials& out_;
  std::int64_t ld_, ld_chunk_, width_, tiles_per_chunk_, b_ = 0, h_ = 0;
  bool near_linear_, scores_, keys_side_;
  HeadRows q_rows_, k_rows_, v_rows_, y_rows_, dy_rows_;
  TileMap map_q_, map_k_;
  Rows q_, k_, v_, y_, dy_;
  float gate_ = 0;
  double total_ = 0;  // sum over the head's queries of t_i
  // Tiles.
  Scratch q_transposed_, dn_, dn_transposed_, phi_k_, dphi_, v_transposed_, state_, state_sum_;
  Scratch scores_tile_, weights_, da_, linear_, linear_transposed_, dq_tile_;
  // One head's length: phi_q and dz of every tile, the tiles' share of dphi_k, dk, dv, 1 / Z.
  Scratch phi_q_, dphi_near_, dk_, dv_, inverse_, dz_;
  Scratch lanes_;
};

// [B, H, T, D] fp32 summed over the query heads of each kv head, in ascending order.
at::Tensor fold_group(const at::Tensor& partial, std::int64_t num_kv_heads, at::ScalarType dtype) {
  const std::int64_t group = partial.size(1) / num_kv_heads;
  const at::Tensor grouped = partial.unflatten(1, {num_kv_heads, group});
  at::Tensor sum = grouped.select(2, 0);
  for (std::int64_t r = 1; r < group; ++r) {
    sum = r == 1 ? sum + grouped.select(2, r) : sum.add_(grouped.select(2, r));
  }
  return sum.to(dtype);
}

Partials make_partials(const HybridProblem& problem, const HybridNeeds& needs) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const std::vector<std::int64_t> layer_shape{B, H, problem.projected, padded(D)};
  const std::vector<std::int64_t> bias_shape{B, H, problem.projected};
  Partials partials;
  const auto make = [&](bool needed, at::IntArrayRef sizes) {
    return needed ? at::zeros(sizes, floats) : at::Tensor();
  };
  if (needs.q) {
    partials.dq = at::empty({B, H, T, D}, problem.q.options());
  }
  partials.dk = make(needs.k, {B, H, T, D});
  partials.dv = make(needs.v, {B, H, T, D});
  partials.layer_q = make(needs.map_q && problem.map_q.layer.defined(), layer_shape);
  partials.layer_k = make(needs.map_k && problem.map_k.layer.defined(), layer_shape);
  partials.bias_q = make(needs.map_q && problem.map_q.bias.defined(), bias_shape);
  partials.bias_k = make(needs.map_k && problem.map_k.bias.defined(), bias_shape);
  partials.window_factors = make(needs.window_factors, {B, H});
  return partials;
}

}  // namespace

HybridGradients hybrid_backward_cpu(const HybridProblem& problem,
                                    const HybridForward& forward,
                                    const at::Tensor& dy,
                                    const HybridNeeds& needs) {
  const Partials partials = make_partials(problem, needs);
  const at::Tensor rows = dy.stride(3) == 1 ? dy : dy.contiguous();
  at::parallel_for(
      0, problem.shape.B * problem.shape.H, 1, [&](std::int64_t begin, std::int64_t end) {
        const ProductsScope scope(problem.products);
        BackwardHead head(problem, forward, rows, needs, partials);
        for (std::int64_t task = begin; task < end; ++task) {
          head.run(task / problem.shape.H, task % problem.shape.H);
        }
      });
  HybridGradients gradients;
  gradients.q = partials.dq;
  gradients.map_q = {fold_layer(partials.layer_q, problem.shape.D), fold_batch(partials.bias_q)};
  gradients.map_k = {fold_layer(partials.layer_k, problem.shape.D), fold_batch(partials.bias_k)};
  gradients.window_factors = fold_batch(partials.window_factors);
  if (needs.k) {
    gradients.k = fold_group(partials.dk, problem.shape.G, problem.q.scalar_type());
  }
  if (needs.v) {
    gradients.v = fold_group(partials.dv, problem.shape.G, problem.q.scalar_type());
  }
  return gradients;
}

}  // namespace hedgerow::kernels::cpu
