#include "kernels/aten/chunks_aten.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

namespace hedgerow::kernels::aten {
namespace {

constexpr std::int64_t kPlainChunk = 64;  // without a window the chunk is free

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

}  // namespace

Chunks::Chunks(const HybridProblem& problem)
    : B(problem.shape.B),
      G(problem.shape.G),
      R(problem.shape.group()),
      T(problem.shape.T),
      D(problem.shape.D),
      F(problem.F),
      // A short sequence is one chunk of its own length.
      C(std::min(problem.windowed() ? problem.options.window_size : kPlainChunk, problem.shape.T)),
      N(ceil_div(problem.shape.T, C)),
      K(problem.key_heads_of_kv()),
      S(problem.num_sinks()),
      layout(problem.options.window),
      window_size(problem.options.window_size),
      options(problem.q.options().dtype(problem.sum_dtype())) {}

at::Tensor Chunks::padded(const at::Tensor& x, std::int64_t chunks_in_front) const {
  const std::int64_t chunks = chunks_in_front + N;
  if (chunks * C == T) {
    return x.to(options.dtype()).unflatten(2, {chunks, C});
  }
  const at::Tensor out = at::zeros({x.size(0), x.size(1), chunks * C, x.size(3)}, options);
  out.narrow(2, chunks_in_front * C, T).copy_(x);
  return out.unflatten(2, {chunks, C});
}

at::Tensor Chunks::query_chunks(const at::Tensor& x) const {
  return padded(x, 0).unflatten(1, {G, R}).permute({0, 1, 3, 2, 4, 5}).contiguous();
}

at::Tensor Chunks::query_tokens(const at::Tensor& x) const {
  return x.permute({0, 1, 3, 2, 4, 5}).reshape({B, G * R, N * C, x.size(5)}).narrow(2, 0, T);
}

at::Tensor Chunks::key_chunks(const at::Tensor& x) const { return padded(x, lead()); }

at::Tensor Chunks::key_tokens(const at::Tensor& x) const {
  return x.flatten(2, 3).narrow(2, lead() * C, T);
}

at::Tensor Chunks::feature_chunks(const at::Tensor& phi) const {
  const at::Tensor chunks = padded(phi, lead())
                                .unflatten(1, {G, K})
                                .permute({0, 1, 3, 4, 2, 5})
                                .clone(at::MemoryFormat::Contiguous);
  chunks.select(2, lead()).narrow(2, 0, S).zero_();
  return chunks;
}

// Likewise the gradients of sinks' features, which nothing reads.
at::Tensor Chunks::feature_tokens(const at::Tensor& phi) const {
  phi.select(2, lead()).narrow(2, 0, S).zero_();
  return phi.permute({0, 1, 4, 2, 3, 5})
      .reshape({B, G * K, (lead() + N) * C, F})
      .narrow(2, lead() * C, T);
}

at::Tensor Chunks::by_key_map(const at::Tensor& x) const {
  return K == R ? x : x.sum(3, /*keepdim=*/true);
}

at::Tensor Chunks::tiles(const at::Tensor& chunks) const {
  if (lead() == 0) return chunks;
  std::vector<at::Tensor> parts{chunks.narrow(2, 0, N), chunks.narrow(2, 1, N)};
  if (S > 0) {
    const at::Tensor sinks = chunks.narrow(2, lead(), 1).narrow(3, 0, S);
    parts.push_back(sinks.expand({-1, -1, N, -1, -1}));
  }
  return at::cat(parts, 3);
}

void Chunks::add_tiles(at::Tensor& chunks, const at::Tensor& tiles) const {
  for (std::int64_t part = 0; part <= lead(); ++part) {
    chunks.narrow(2, part, N).add_(tiles.narrow(3, part * C, C));
  }
  if (S > 0) chunks.select(2, lead()).narrow(2, 0, S).add_(tiles.narrow(3, 2 * C, S).sum(2));
}

// lag = query - key of the tile's pairs but for the sinks behind them [C, (1 + lead) C]; the keys'
// tokens [N, 1, 1, (1 + lead) C], negative in front of the sequence.
std::pair<at::Tensor, at::Tensor> Chunks::lags_and_keys() const {
  const at::TensorOptions integers = options.dtype(at::kLong);
  const at::Tensor slot = at::arange(tile_keys() - S, integers) - lead() * C;
  const at::Tensor lag = at::arange(C, integers).unsqueeze(1) - slot;
  const at::Tensor chunk = at::arange(N, integers).reshape({N, 1, 1, 1});
  return {lag, chunk * C + slot};
}

at::Tensor Chunks::outside_window() const {
  const auto [lag, key] = lags_and_keys();
  at::Tensor outside = lag.lt(0) | key.lt(0);
  if (layout == WindowLayout::kSliding) outside = outside | (lag.ge(window_size) & key.ge(S));
  if (S == 0) return outside;
  // The first two chunks have the sinks among their own keys.
  const at::Tensor chunk = at::arange(N, options.dtype(at::kLong)).reshape({N, 1, 1, 1});
  return at::cat({outside, chunk.le(lead()).expand({N, 1, C, S})}, 3);
}

at::Tensor Chunks::not_near() const {
  const auto [lag, key] = lags_and_keys();
  const at::Tensor inside = lag.lt(layout == WindowLayout::kSliding ? window_size : 0);
  return (inside | key.lt(S)).narrow(3, 0, C);
}

at::Tensor window_begins(const at::Tensor& queries, const HybridOptions& options) {
  const std::int64_t W = options.window_size;
  switch (options.window) {
    case WindowLayout::kNone:
      return queries + 1;
    case WindowLayout::kSliding:
      return (queries - (W - 1)).clamp_min(0);
    case WindowLayout::kTerraced:
      return (queries - queries.remainder(W) - W).clamp_min(0);
  }
  C10_THROW_ERROR(Error,
                  c10::str("attention: unknown window layout ", static_cast<int>(options.window)));
}

at::Tensor window_gains(const at::Tensor& queries,
                        const HybridOptions& options,
                        at::ScalarType dtype) {
  if (options.linear_cap == 0) return {};
  const at::Tensor keys = window_begins(queries, options) - options.num_sinks;
  return (keys.to(dtype) / static_cast<double>(options.linear_cap)).clamp_min(1.0);
}

void accumulate_chunks(at::Tensor& x, bool reverse) {
  const std::int64_t N = x.size(2);
  const auto block = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(N))));
  // Inside blocks, all blocks at once.
  for (std::int64_t j = 1; j < std::min(block, N); ++j) {
    const std::int64_t start = reverse ? (N - 1 - j) % block : j, end = reverse ? N - j : N;
    const std::int64_t from = reverse ? 1 : -1;
    x.slice(2, start, end, block).add_(x.slice(2, start + from, end + from, block));
  }
  // Then each block takes what the blocks in front of it hold.
  for (std::int64_t first = block; first < N; first += block) {
    const std::int64_t count = std::min(block, N - first);
    const std::int64_t begin = reverse ? N - first - count : first;
    x.narrow(2, begin, count).add_(x.select(2, reverse ? begin + count : begin - 1).unsqueeze(2));
  }
}

DifferentiableMap::DifferentiableMap(const at::Tensor& x,
                                     const FeatureMapWeights& weights,
                                     const FeatureMapOptions& options,
                                     std::int64_t num_heads,
                                     FeatureMapRole role,
                                     bool needs_x,
                                     bool needs_weights) {
  // The engine that called us has recording off; the map's own graph is walked by backward().
  const at::AutoGradMode record(needs_x || needs_weights);
  const auto leaf = [](const at::Tensor& value, bool needed) {
    return value.defined() ? value.detach().set_requires_grad(needed) : value;
  };
  // In the sums' dtype, or the gradient of a bf16 x would be rounded before it is summed.
  x_ = leaf(x.to(sum_dtype_of(x)), needs_x);
  weights_ = {leaf(weights.layer, needs_weights), leaf(weights.bias, needs_weights)};
  with_graph_ = apply_feature_map(x_, weights_, options, num_heads, role);
  phi_ = with_graph_.detach();
}

DifferentiableMap::Gradients DifferentiableMap::backward(const at::Tensor& dphi) const {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& leaf : {x_, weights_.layer, weights_.bias}) {
    if (leaf.defined() && leaf.requires_grad()) {
      leaves.push_back(leaf);
    }
  }
  Gradients gradients;
  if (leaves.empty()) {
    return gradients;
  }
  const std::vector<at::Tensor> found =
      torch::autograd::grad({with_graph_}, leaves, {dphi}, false, false, true);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    at::Tensor& target = leaves[i].is_same(x_)               ? gradients.x
                         : leaves[i].is_same(weights_.layer) ? gradients.weights.layer
                                                             : gradients.weights.bias;
    target = found[i];
  }
  return gradients;
}

at::Tensor Part::queries(const at::Tensor& x) const {
  return x.narrow(0, b, num_b).narrow(1, h, num_h);
}
at::Tensor Part::keys(const at::Tensor& x) const {
  return x.narrow(0, b, num_b).narrow(1, g, num_g);
}
at::Tensor Part::heads(const at::Tensor& x) const { return x.narrow(0, h, num_h); }
at::Tensor Part::key_maps(const at::Tensor& x) const {
  const std::int64_t per_kv = problem.key_heads_of_kv();
  return x.narrow(0, g * per_kv, num_g * per_kv);
}

void Part::add_heads(const at::Tensor& whole, const at::Tensor& own) const {
  if (whole.defined() && own.defined()) {
    heads(whole).add_(own);
  }
}

void Part::add_query_map(const FeatureMapWeights& whole, const FeatureMapWeights& own) const {
  add_heads(whole.layer, own.layer);
  add_heads(whole.bias, own.bias);
}

void Part::add_key_map(const FeatureMapWeights& whole, const FeatureMapWeights& own) const {
  if (own.layer.defined() && whole.layer.defined()) key_maps(whole.layer).add_(own.layer);
  if (own.bias.defined() && whole.bias.defined()) key_maps(whole.bias).add_(own.bias);
}

std::vector<Part> parts_of(const HybridProblem& problem,
                           std::int64_t elements,
                           std::int64_t part_elements) {
  const auto& [B, H, G, T, D] = problem.shape;
  const std::int64_t R = problem.shape.group();
  const std::int64_t fitting = std::max<std::int64_t>(1, part_elements / elements);
  const std::int64_t most_b = std::clamp<std::int64_t>(fitting / G, 1, B);
  const std::int64_t most_g = std::min(fitting, G);
  std::vector<Part> parts;
  for (std::int64_t b = 0; b < B; b += most_b) {
    for (std::int64_t g = 0; g < G; g += most_g) {
      const std::int64_t num_b = std::min(most_b, B - b), num_g = std::min(most_g, G - g);
      Part part{problem, b, num_b, g * R, num_g * R, g, num_g};
      const auto own = [&](const at::Tensor& x) { return x.defined() ? part.heads(x) : x; };
      const auto own_key = [&](const at::Tensor& x) { return x.defined() ? part.key_maps(x) : x; };
      part.problem.map_k = {own_key(problem.map_k.layer), own_key(problem.map_k.bias)};
      part.problem.key_heads = num_g * problem.key_heads_of_kv();
      part.problem.shape = {num_b, num_g * R, num_g, T, D};
      part.problem.q = part.queries(problem.q);
      part.problem.k = part.keys(problem.k);
      part.problem.v = problem.v.defined() ? part.keys(problem.v) : problem.v;
      part.problem.map_q = {own(problem.map_q.layer), own(problem.map_q.bias)};
      part.problem.gate = own(problem.gate);
      parts.push_back(part);
    }
  }
  return parts;
}

std::int64_t query_tile(std::int64_t num_sequences_and_heads, std::int64_t T) {
  constexpr std::int64_t kMostQueries = 128;
  return std::clamp(kPartElements / (num_sequences_and_heads * T), kFewestQueries, kMostQueries);
}

}  // namespace hedgerow::kernels::aten
