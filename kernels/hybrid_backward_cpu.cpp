// The keys' side of hybrid_backward_head.hpp, and the fold of all heads' results.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "kernels/hybrid_backward_head.hpp"

namespace hedgerow::kernels::cpu {

void BackwardHead::descend(std::int64_t chunk) {
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
                    head_of(out_.layer_k),
                    head_of(out_.bias_k),
                    needs_.k ? dk_.data() + keys.begin * width_ : nullptr,
                    width_);
  }
}

void BackwardHead::join_queries(std::int64_t chunk) {
  for_tiles(problem_, chunk, [&](const QueryTile& tile) {
    const std::int64_t D = problem_.shape.D, n = tile.queries();
    const float* phi = phi_q(tile.begin);
    scale_rows(dy_.row(tile.begin), dy_.ld, inverse_.data() + tile.begin, n, D, dn_.data(), width_);
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

void BackwardHead::store_head() {
  const std::int64_t T = problem_.shape.T, D = problem_.shape.D;
  if (needs_.k) {
    narrow_rows(dk_.data(), width_, T, D, nullptr, head_of(out_.dk), at::kFloat, D);
  }
  if (needs_.v) {
    narrow_rows(dv_.data(), width_, T, D, nullptr, head_of(out_.dv), at::kFloat, D);
  }
  if (needs_.window_factors) {
    *head_of(out_.window_factors) = static_cast<float>((1.0 - static_cast<double>(gate_)) * total_);
  }
}

namespace {

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

BackwardPartials make_partials(const HybridProblem& problem, const HybridNeeds& needs) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const std::vector<std::int64_t> layer_shape{B, H, problem.projected, padded(D)};
  const std::vector<std::int64_t> bias_shape{B, H, problem.projected};
  BackwardPartials partials;
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
  const BackwardPartials partials = make_partials(problem, needs);
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
