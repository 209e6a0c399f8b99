// The keys' side of hybrid_backward_walker.hpp, and the fold of all heads' results.
#include <ATen/ATen.h>

#include "kernels/cpu/hybrid_backward_walker.hpp"

namespace hedgerow::kernels::cpu {

void BackwardWalker::descend(std::int64_t chunk) {
  const std::int64_t F = problem_.F, D = problem_.shape.D;
  const bool has_state = chunk + problem_.state_lag() + 1 < problem_.num_chunks();
  const bool near = sizes_.near_linear && chunk + problem_.state_lag() < problem_.num_chunks();
  if (has_state) {
    join_queries(chunk + problem_.state_lag() + 1);
  }
  if (has_state || near) {
    const ChunkRange keys = chunk_range(problem_, chunk);
    const std::int64_t tokens = keys.tokens();
    float* dphi = sizes_.near_linear ? dphi_near(chunk) : scratch_.dphi.data();
    if (!sizes_.near_linear) {
      std::fill(dphi, dphi + F * sizes_.ld_chunk, 0.0F);
    }
    key_features(problem_, map_k_, k_, keys, scratch_.phi_k.data(), sizes_.ld_chunk);
    if (has_state) {
      transpose(
          v_.row(keys.begin), v_.ld, tokens, D, scratch_.v_transposed.data(), sizes_.ld_chunk);
      multiply(problem_.products,
               {F, tokens, D},
               as_stored(state_gradient_.matrix(), sizes_.width),
               {scratch_.v_transposed.data(), sizes_.ld_chunk},
               dphi,
               sizes_.ld_chunk,
               true);
      add_columns(dphi, sizes_.ld_chunk, F, padded(tokens), state_gradient_.column());
      if (needs_.v) {
        multiply(problem_.products,
                 {tokens, D, F},
                 transposed(scratch_.phi_k.data(), sizes_.ld_chunk),
                 {state_gradient_.matrix(), sizes_.width},
                 key_row(scratch_.dv, keys.begin),
                 sizes_.width,
                 true);
      }
    }
    clear_sinks(problem_, keys.begin, dphi, sizes_.ld_chunk);
    map_k_.backward(scratch_.phi_k.data(),
                    dphi,
                    sizes_.ld_chunk,
                    k_,
                    keys.begin,
                    tokens,
                    partial_of(out_.layer_k, key_head_),
                    partial_of(out_.bias_k, key_head_),
                    needs_.k ? key_row(scratch_.dk, keys.begin) : nullptr,
                    sizes_.width);
  }
}

void BackwardWalker::join_queries(std::int64_t chunk) {
  each_query_head([&] {
    for_tiles(problem_, chunk, [&](const QueryTile& tile) {
      const std::int64_t D = problem_.shape.D, n = tile.queries();
      const float* phi = phi_q(tile.begin);
      dy_ = dy_rows_.rows(b_, h_, tile.begin, tile.end);
      scale_gradients(tile);
      multiply(problem_.products,
               {problem_.F, D, n},
               as_stored(phi, sizes_.ld),
               {scratch_.dn.data(), sizes_.width},
               state_gradient_.own_matrix(),
               sizes_.width,
               true);
      add_row_sums(phi, sizes_.ld, problem_.F, n, dz(tile.begin), state_gradient_.own_column());
    });
  });
  state_gradient_.settle();
}

void BackwardWalker::store_segment() {
  const auto [begin, end] = tokens_of(problem_, segment_.first_chunk, segment_.end_chunk);
  const std::int64_t D = problem_.shape.D;
  const auto store = [&, first = begin, tokens = end - begin](Scratch& rows,
                                                              const at::Tensor& out) {
    narrow_rows(key_row(rows, first),
                sizes_.width,
                tokens,
                D,
                nullptr,
                head_of(out, key_head_) + first * D,
                at::kFloat,
                D);
  };
  if (needs_.k) {
    store(scratch_.dk, out_.dk);
  }
  if (needs_.v) {
    store(scratch_.dv, out_.dv);
  }
  for (const auto& [rows, out] :
       {std::pair{&scratch_.sink_dk, &out_.sink_k}, {&scratch_.sink_dv, &out_.sink_v}}) {
    if (out->defined()) {
      std::copy_n(rows->data(), problem_.num_sinks() * sizes_.width, partial_of(*out, key_head_));
    }
  }
  if (out_.totals.defined()) {
    std::copy(totals_.begin(),
              totals_.end(),
              out_.totals.data_ptr<double>() +
                  (b_ * out_.totals.size(1) + segment_.index) * problem_.shape.H +
                  key_head_ * problem_.key_group());
  }
}

namespace {

// [B, U, T, D] fp32, with what sinks have in each segment, [B, N, U, sinks, padded(D)], summed over
// the key heads of each kv head, in ascending order.
at::Tensor fold_group(const at::Tensor& partial,
                      const at::Tensor& of_sinks,
                      std::int64_t num_kv_heads,
                      at::ScalarType dtype) {
  if (of_sinks.defined()) {
    const at::Tensor sinks = partial.narrow(2, 0, of_sinks.size(3));
    for (std::int64_t segment = 0; segment < of_sinks.size(1); ++segment) {
      sinks.add_(of_sinks.select(1, segment).narrow(3, 0, partial.size(3)));
    }
  }
  const std::int64_t group = partial.size(1) / num_kv_heads;
  const at::Tensor grouped = partial.unflatten(1, {num_kv_heads, group});
  at::Tensor sum = grouped.select(2, 0);
  for (std::int64_t r = 1; r < group; ++r) {
    sum = r == 1 ? sum + grouped.select(2, r) : sum.add_(grouped.select(2, r));
  }
  return sum.to(dtype);
}

// [B, N, ...] as if every segment were a sequence of its own.
at::Tensor of_sequences(const at::Tensor& partial) {
  return partial.defined() ? partial.flatten(0, 1) : partial;
}

// d logit(g) = (1 - g) sum_i t_i, from totals [B, N, H].
at::Tensor factor_gradient(const TiledProblem& problem, const at::Tensor& totals) {
  if (!totals.defined()) {
    return {};
  }
  const at::Tensor sums = fold_batch(totals.transpose(0, 1));
  return fold_batch((sums * (1.0 - problem.gate.to(at::kDouble))).to(at::kFloat));
}

BackwardPartials make_partials(const TiledProblem& problem, const HybridNeeds& needs) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions floats = problem.q.options().dtype(at::kFloat);
  const std::int64_t N = problem.num_segments(), U = problem.key_heads, f = problem.projected;
  const std::int64_t num_sinks = problem.num_sinks();
  BackwardPartials partials;
  const auto make = [&](bool needed, at::IntArrayRef sizes) {
    return needed ? at::zeros(sizes, floats) : at::Tensor();
  };
  if (needs.q) {
    partials.dq = at::empty({B, H, T, D}, problem.q.options());
  }
  for (const auto& [needed, rows, sinks] : {std::tuple{needs.k, &partials.dk, &partials.sink_k},
                                            {needs.v, &partials.dv, &partials.sink_v}}) {
    if (needed) *rows = at::empty({B, U, T, D}, floats);
    *sinks = make(needed && num_sinks > 0, {B, N, U, num_sinks, padded(D)});
  }
  partials.layer_q = make(needs.map_q && problem.map_q.layer.defined(), {B, N, H, f, padded(D)});
  partials.layer_k = make(needs.map_k && problem.map_k.layer.defined(), {B, N, U, f, padded(D)});
  partials.bias_q = make(needs.map_q && problem.map_q.bias.defined(), {B, N, H, f});
  partials.bias_k = make(needs.map_k && problem.map_k.bias.defined(), {B, N, U, f});
  if (needs.window_factors && problem.windowed()) {
    partials.totals = at::empty({B, N, H}, floats.dtype(at::kDouble));
  }
  return partials;
}

}  // namespace

HybridGradients hybrid_backward_cpu(const TiledProblem& problem,
                                    const HybridForward& forward,
                                    const at::Tensor& dy,
                                    const HybridNeeds& needs) {
  const BackwardPartials partials = make_partials(problem, needs);
  const at::Tensor rows = dy.stride(3) == 1 ? dy : dy.contiguous();
  const at::Tensor states = forward.saved.empty() ? sum_states(problem) : forward.saved[0];
  const bool keys_side = needs.k || needs.v || needs.map_k;
  const at::Tensor borders = keys_side ? make_borders(problem) : at::Tensor();
  walk_segments(problem, borders, /*descends=*/true, [&] {
    return BackwardWalker(problem, forward, states, rows, needs, partials);
  });
  HybridGradients gradients;
  gradients.q = partials.dq;
  gradients.map_q = {fold_layer(of_sequences(partials.layer_q), problem.shape.D),
                     fold_batch(of_sequences(partials.bias_q))};
  gradients.map_k = {fold_layer(of_sequences(partials.layer_k), problem.shape.D),
                     fold_batch(of_sequences(partials.bias_k))};
  gradients.window_factors = factor_gradient(problem, partials.totals);
  if (needs.k) {
    gradients.k =
        fold_group(partials.dk, partials.sink_k, problem.shape.G, problem.q.scalar_type());
  }
  if (needs.v) {
    gradients.v =
        fold_group(partials.dv, partials.sink_v, problem.shape.G, problem.q.scalar_type());
  }
  return gradients;
}

}  // namespace hedgerow::kernels::cpu
