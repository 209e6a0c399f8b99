#include "kernels/cuda/hybrid_backward_cuda.hpp"

#include <ATen/ATen.h>

#include <algorithm>

namespace hedgerow::kernels::cuda {

RowGradients prepare_rows(const HybridProblem& problem,
                          const HybridForward& forward,
                          const at::Tensor& dy,
                          Stream stream) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::Tensor rows = dy.stride(3) == 1 ? dy : dy.contiguous();
  RowGradients out{at::empty({B, H, T, D}, problem.q.options()),
                   at::empty({B, H, T}, problem.q.options().dtype(at::kFloat)),
                   problem.windowed() ? at::empty_like(forward.denominator) : at::Tensor(),
                   forward.saved[kMaxima],
                   forward.saved[kTies]};
  PrepareArguments a;
  a.B = static_cast<int>(B);
  a.H = static_cast<int>(H);
  a.T = static_cast<int>(T);
  a.D = static_cast<int>(D);
  a.dy = rows.const_data_ptr();
  a.dy_is_float = rows.scalar_type() == at::kFloat;
  a.dy_batch = rows.stride(0);
  a.dy_head = rows.stride(1);
  a.dy_token = rows.stride(2);
  const at::Tensor& y = forward.y_saved;
  a.y = y.const_data_ptr();
  a.y_is_float = y.scalar_type() == at::kFloat;
  a.y_batch = y.stride(0);
  a.y_head = y.stride(1);
  a.y_token = y.stride(2);
  a.rest = forward.saved[kRest].defined() ? bf16(forward.saved[kRest]) : nullptr;
  a.denominator = floats(forward.denominator);
  a.dn = bf16_out(out.dn);
  a.beta = floats(out.beta);
  if (problem.windowed()) {
    a.pull = bf16(forward.saved[kPull]);
    a.totals = floats(out.totals);
  }
  launch_prepare(a, stream);
  return out;
}

FeatureMapWeights Partials::fold() const {
  const auto sum = [](const at::Tensor& x) {
    return x.defined() ? x.sum(at::IntArrayRef{0, 1}) : x;
  };
  return {sum(layer), sum(bias)};
}

Partials make_partials(const Prepared& p,
                       const FeatureMapWeights& map,
                       std::int64_t heads,
                       bool needed,
                       std::int64_t parts,
                       const at::TensorOptions& options) {
  const std::int64_t B = p.inputs.B, f = p.shape.projected;
  Partials out;
  if (needed && map.layer.defined()) {
    out.layer = at::empty({parts, B, heads, p.shape.head_dim, f}, options.dtype(at::kFloat));
  }
  if (needed && map.bias.defined()) {
    out.bias = at::empty({parts, B, heads, f}, options.dtype(at::kFloat));
  }
  return out;
}

int tiles_per_part(const Prepared& p) {
  constexpr int kWavesOfCard = 4;
  const int rows = p.inputs.B * p.inputs.H;
  const int parts = std::max(1, kWavesOfCard * device_limits().multiprocessors / rows);
  return std::max(1, (p.inputs.tiles() + parts - 1) / parts);
}

// What tiles of queries send to the dk and dv of far sinks; undefined where there are none.
struct SinkGradients {
  SinkGradients(const Prepared& p, bool needed, const at::TensorOptions& options) {
    const HybridInputs& in = p.inputs;
    const int first = in.first_far_query_tile(0);
    if (!needed || in.sinks == 0 || first >= in.tiles()) return;
    const auto partial = [&] {
      // A tile of queries may find some of the sinks far and others near.
      return at::zeros({in.tiles() - first, in.B, in.H, in.sinks, p.shape.head_dim},
                       options.dtype(at::kFloat));
    };
    k = partial();
    v = partial();
  }
  // [B, G, sinks, D]: over the tiles, and the query heads of a kv head.
  void fold(const Prepared& p) {
    for (at::Tensor* x : {&k, &v}) {
      if (x->defined())
        *x = x->unflatten(2, {p.inputs.G, p.inputs.group()}).sum(at::IntArrayRef{0, 3});
    }
  }
  at::Tensor k, v;
};

at::Tensor factor_gradient(const HybridProblem& problem, const at::Tensor& totals) {
  const at::Tensor sum = totals.sum(at::IntArrayRef{0, 2}, false, at::kDouble);
  return ((1.0 - problem.gate.to(at::kDouble)) * sum).to(at::kFloat);
}

HybridGradients gradients_of(const HybridProblem& problem,
                             Prepared& p,
                             const Walked& keys,
                             const RowGradients& rows,
                             const HybridNeeds& needs) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions options = problem.q.options();
  const bool inputs = needs.q || needs.k || needs.v;
  Walked queries = walk_queries(p, rows.dn, rows.beta, options);
  if (queries.states.defined() && problem.key_heads < H) {
    // What reaches the keys of a shared map: its query heads' sums, in their order.
    const auto fold = [&](const at::Tensor& x) {
      return x.unflatten(1, {problem.key_heads, problem.key_group()}).sum(2);
    };
    queries.states = fold(queries.states);
    queries.sums = fold(queries.sums);
  }
  BackwardArguments a;
  a.inputs = p.inputs;
  a.far = keys.pointers();
  a.far_gradient = queries.pointers();
  a.features_k = keys.features_pointer();
  a.features_q = queries.features_pointer();
  a.dn = rows_of(rows.dn, p.kept);
  a.beta = floats(rows.beta);
  a.maxima = floats(rows.maxima);
  a.ties = floats(rows.ties);
  a.tiles_per_part = inputs ? 1 : tiles_per_part(p);
  const std::int64_t parts = (p.tiles + a.tiles_per_part - 1) / a.tiles_per_part;
  const Partials map_q = make_partials(p, problem.map_q, H, needs.map_q, parts, options);
  const Partials map_k =
      make_partials(p, problem.map_k, problem.key_heads, needs.map_k, parts, options);
  a.layer_q = floats(map_q.layer);
  a.bias_q = floats(map_q.bias);
  a.layer_k = floats(map_k.layer);
  a.bias_k = floats(map_k.bias);
  a.totals = floats(rows.totals);
  HybridGradients gradients;
  const auto like = [&](bool needed, std::int64_t heads, std::uint16_t*& pointer) {
    const at::Tensor x = needed ? at::empty({B, heads, T, D}, options) : at::Tensor();
    pointer = needed ? bf16_out(x) : nullptr;
    return x;
  };
  gradients.q = like(needs.q, H, a.dq);
  gradients.k = like(needs.k, G, a.dk);
  gradients.v = like(needs.v, G, a.dv);
  SinkGradients sinks(p, needs.k || needs.v, options);
  a.sink_k = floats(sinks.k);
  a.sink_v = floats(sinks.v);
  if (needs.q || needs.map_q || sinks.k.defined()) {
    launch_backward_queries(p.shape, inputs, a, p.stream);
  }
  sinks.fold(p);
  a.sink_k_sum = floats(sinks.k);
  a.sink_v_sum = floats(sinks.v);
  if (needs.k || needs.v || needs.map_k) {
    launch_backward_keys(p.shape, inputs, a, p.stream);
  }
  gradients.map_q = map_q.fold();
  gradients.map_k = map_k.fold();
  if (needs.window_factors && problem.windowed()) {
    gradients.window_factors = factor_gradient(problem, rows.totals);
  }
  return gradients;
}

}  // namespace hedgerow::kernels::cuda
