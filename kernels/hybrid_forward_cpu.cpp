// y and Z of the hybrid, one (batch, head) at a time. For each chunk c: tiles of queries against
// the keys of chunks c - 1 and c (the window, and the sliding layout's near linear pairs), plus
// phi_q (S, z) for everything before; then (S, z) += phi_k [v, 1] of chunk c - 1.
// Per head T D (8 W + 4 f + 4 F) FLOPs beside the exponentials, sums in fp32. Scratch of a thread:
// one tile, one chunk of features, (S, z), and widened rows of q, k and v where they are bf16.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "kernels/hybrid_head_cpu.hpp"
#include "kernels/linear_attention.hpp"

namespace hedgerow::kernels::cpu {
namespace {

class ForwardHead {
 public:
  ForwardHead(const HybridProblem& problem, const HybridForward& out)
      : problem_(problem),
        out_(out),
        q_rows_(problem.q),
        k_rows_(problem.k),
        v_rows_(problem.v.defined() ? problem.v : problem.k),
        map_q_(problem, problem.map_q, FeatureMapRole::kQuery, problem.tile_lanes()),
        map_k_(problem, problem.map_k, FeatureMapRole::kKey, problem.chunk_lanes()),
        ld_(problem.tile_lanes()),
        ld_chunk_(problem.chunk_lanes()),
        q_transposed_(problem.shape.D * ld_),
        phi_q_(problem.F * ld_),
        phi_k_(problem.F * ld_chunk_),
        weights_(2 * ld_chunk_ * ld_),
        linear_(ld_chunk_ * ld_),
        state_(problem.F * padded(problem.shape.D)),
        state_sum_(problem.F),
        tile_y_(ld_ * padded(problem.shape.D)),
        lanes_(4 * ld_) {}

  void run(std::int64_t b, std::int64_t h) {
    const std::int64_t kv_head = h / problem_.shape.group();
    b_ = b;
    h_ = h;
    q_ = q_rows_.rows(b, h);
    k_ = k_rows_.rows(b, kv_head);
    v_ = v_rows_.rows(b, kv_head);
    map_q_.select_head(h);
    map_k_.select_head(h);
    gate_ = problem_.windowed() ? problem_.gate.const_data_ptr<float>()[h] : 0.0F;
    state_.clear();
    state_sum_.clear();
    for (std::int64_t chunk = 0; chunk < problem_.num_chunks(); ++chunk) {
      walk_chunk(chunk);
    }
  }

 private:
  void walk_chunk(std::int64_t chunk) {
    const std::int64_t far = chunk - problem_.state_lag();
    const bool near_linear = far >= 0 && problem_.options.layout != WindowLayout::kTerraced;
    const bool flushes = far >= 0 && chunk + 1 < problem_.num_chunks();
    if (near_linear || flushes) {
      const ChunkRange keys = chunk_range(problem_, far);
      map_k_.features(k_, keys.begin, keys.tokens(), nullptr, phi_k_.data(), ld_chunk_);
    }
    for_tiles(problem_, chunk, [&](const QueryTile& tile) { walk_tile(tile, far > 0); });
    if (flushes) {
      flush(chunk_range(problem_, far));
    }
  }

  // (S, z) += phi_k [v, 1].
  void flush(ChunkRange keys) {
    add_row_sums(phi_k_.data(), ld_chunk_, problem_.F, keys.tokens(), nullptr, state_sum_.data());
    if (problem_.v.defined()) {
      multiply(problem_.products,
               {problem_.F, problem_.shape.D, keys.tokens()},
               as_stored(phi_k_.data(), ld_chunk_),
               v_.right(keys.begin),
               state_.data(),
               padded(problem_.shape.D),
               true);
    }
  }

  void walk_tile(const QueryTile& tile, bool has_state) {
    const std::int64_t D = problem_.shape.D, F = problem_.F, n = tile.queries(), lanes = padded(n);
    float* window_sum = lanes_.data();
    float* linear_sum = window_sum + ld_;
    float* maxima = linear_sum + ld_;
    std::fill(window_sum, window_sum + 2 * ld_, 0.0F);
    const bool near_linear = tile.linear_rows() > 0;
    transpose(q_.row(tile.begin), q_.ld, n, D, q_transposed_.data(), ld_);
    if (near_linear || has_state) {
      map_q_.features(q_, tile.begin, n, q_transposed_.data(), phi_q_.data(), ld_);
    }
    if (problem_.windowed()) {
      const float scale = 1.0F / std::sqrt(static_cast<float>(D));
      multiply(problem_.products,
               {tile.keys(), n, D},
               as_stored(k_.row(tile.keys_begin), k_.ld),
               {q_transposed_.data(), ld_},
               weights_.data(),
               ld_,
               false);
      window_weights(weights_.data(),
                     ld_,
                     tile.keys(),
                     lanes,
                     tile.window_mask,
                     scale,
                     gate_,
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
        add_tile(weights_.data(), target, ld_, tile.linear_rows(), lanes);
      }
    }
    if (has_state) {
      column_sums(phi_q_.data(), ld_, F, lanes, state_sum_.data(), linear_sum, true);
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
    multiply(problem_.products,
             {n, D, tile.keys()},
             transposed(weights_.data(), ld_),
             v_.right(tile.keys_begin),
             tile_y_.data(),
             width,
             false);
    if (has_state) {
      multiply(problem_.products,
               {n, D, problem_.F},
               transposed(phi_q_.data(), ld_),
               {state_.data(), width},
               tile_y_.data(),
               width,
               true);
    }
    store_rows(out_.y, tile, inverse);
    if (out_.y_saved.defined() && !out_.y_saved.is_same(out_.y)) {
      store_rows(out_.y_saved, tile, inverse);
    }
  }

  void store_rows(const at::Tensor& y, const QueryTile& tile, const float* inverse) {
    const std::int64_t offset = b_ * y.stride(0) + h_ * y.stride(1) + tile.begin * y.stride(2);
    auto* to =
        static_cast<char*>(y.data_ptr()) + offset * static_cast<std::int64_t>(y.element_size());
    narrow_rows(tile_y_.data(),
                padded(problem_.shape.D),
                tile.queries(),
                problem_.shape.D,
                inverse,
                to,
                y.scalar_type(),
                y.stride(2));
  }

  const HybridProblem& problem_;
  const HybridForward& out_;
  HeadRows q_rows_, k_rows_, v_rows_;
  TileMap map_q_, map_k_;
  std::int64_t ld_, ld_chunk_, b_ = 0, h_ = 0;
  Rows q_, k_, v_;
  float gate_ = 0;
  Scratch q_transposed_, phi_q_, phi_k_, weights_, linear_, state_, state_sum_, tile_y_, lanes_;
};

}  // namespace

HybridProblem make_problem(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const HybridParameters& parameters,
                           const HybridOptions& options) {
  return {kernels::make_hybrid_problem(q, k, v, parameters, options),
          products_for(q.scalar_type())};
}

HybridForward hybrid_forward_cpu(const HybridProblem& problem, bool keep_for_backward) {
  HybridForward out = make_hybrid_forward(problem, keep_for_backward);
  at::parallel_for(
      0, problem.shape.B * problem.shape.H, 1, [&](std::int64_t begin, std::int64_t end) {
        const ProductsScope scope(problem.products);
        ForwardHead head(problem, out);
        for (std::int64_t task = begin; task < end; ++task) {
          head.run(task / problem.shape.H, task % problem.shape.H);
        }
      });
  return out;
}

}  // namespace hedgerow::kernels::cpu
