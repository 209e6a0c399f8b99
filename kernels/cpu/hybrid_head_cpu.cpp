#include "kernels/cpu/hybrid_head_cpu.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kernels/problem/exponential_maps.hpp"

namespace hedgerow::kernels::cpu {

std::vector<std::vector<float>>& Scratch::kept() {
  static thread_local std::vector<std::vector<float>> pieces;
  return pieces;
}

Scratch::Scratch(std::int64_t floats) {
  const std::size_t size = static_cast<std::size_t>(floats) + kFloatsPerLine;
  // The smallest piece that is large enough, else the largest, which grows: so there are never more
  // pieces than were in use at once.
  const auto is_better = [size](const std::vector<float>& a, const std::vector<float>& b) {
    const std::size_t of_a = a.capacity(), of_b = b.capacity();
    if ((of_a >= size) != (of_b >= size)) return of_a >= size;
    return of_a >= size ? of_a < of_b : of_a > of_b;
  };
  const auto best = std::min_element(kept().begin(), kept().end(), is_better);
  if (best != kept().end()) {
    std::swap(storage_, *best);
    std::swap(*best, kept().back());
    kept().pop_back();
  }
  storage_.assign(size, 0.0F);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  constexpr std::uintptr_t kLine = kFloatsPerLine * sizeof(float);
  aligned_ = storage_.data() + (kLine - address % kLine) % kLine / sizeof(float);
}

Scratch::~Scratch() {
  if (storage_.capacity() <= kMostKept) {
    kept().push_back(std::move(storage_));
  }
}

void Scratch::clear() { std::fill(storage_.begin(), storage_.end(), 0.0F); }

HeadRows::HeadRows(const at::Tensor& x, std::int64_t max_rows)
    : x_(x),
      in_place_(x.scalar_type() == at::kFloat && x.size(3) % 16 == 0),
      ld_(in_place_ ? x.stride(2) : padded(x.size(3))),
      space_(in_place_ ? 0 : std::min(max_rows, x.size(2)) * padded(x.size(3))) {}

Rows HeadRows::rows(std::int64_t b, std::int64_t head, std::int64_t first, std::int64_t end) {
  const std::int64_t offset = b * x_.stride(0) + head * x_.stride(1) + first * x_.stride(2);
  if (in_place_) {
    return {x_.const_data_ptr<float>() + offset, ld_, first};
  }
  const auto* bytes = static_cast<const char*>(x_.const_data_ptr()) +
                      offset * static_cast<std::int64_t>(x_.element_size());
  widen_rows(bytes, x_.scalar_type(), x_.stride(2), end - first, x_.size(3), space_.data(), ld_);
  return {space_.data(), ld_, first};
}

ChunkRange chunk_range(const TiledProblem& problem, std::int64_t chunk) {
  const std::int64_t begin = chunk * problem.chunk();
  return {begin, std::min(begin + problem.chunk(), problem.shape.T)};
}

QueryTile query_tile(const TiledProblem& problem, std::int64_t begin) {
  const std::int64_t chunk = begin / problem.chunk();
  const std::int64_t window = problem.options.window_size;
  QueryTile tile{};
  tile.begin = begin;
  tile.end = std::min(begin + TiledProblem::kQueryTile, chunk_range(problem, chunk).end);
  tile.keys_begin = std::max<std::int64_t>(0, chunk - problem.state_lag()) * problem.chunk();
  switch (problem.options.window) {
    case WindowLayout::kNone:
      tile.linear_end = tile.end;
      break;
    case WindowLayout::kSliding:
      tile.linear_end = std::max(tile.keys_begin, tile.end - window);
      break;
    case WindowLayout::kTerraced:
      tile.linear_end = tile.keys_begin;
      break;
  }
  const bool sliding = problem.options.window == WindowLayout::kSliding;
  const std::int64_t num_sinks = problem.num_sinks();
  tile.num_sinks = tile.keys_begin == 0 ? 0 : num_sinks;
  tile.window_mask = {
      tile.keys_begin - tile.num_sinks, begin, 0, sliding ? window : kNoLag, num_sinks};
  tile.linear_mask = {tile.keys_begin, begin, sliding ? window : 0, kNoLag};
  return tile;
}

void query_gates(const TiledProblem& problem, const QueryTile& tile, float gate, float* gates) {
  std::fill(gates, gates + padded(tile.queries()), gate);
  if (!problem.options.caps_linear()) return;
  for (std::int64_t i = 0; i < tile.queries(); ++i) {
    gates[i] *= window_gain(problem.options, tile.begin + i);
  }
}

at::Tensor fold_batch(const at::Tensor& partial) {
  if (!partial.defined()) {
    return {};
  }
  at::Tensor sum = partial[0].clone();
  for (std::int64_t b = 1; b < partial.size(0); ++b) {
    sum += partial[b];
  }
  return sum;
}

at::Tensor fold_layer(const at::Tensor& partial, std::int64_t head_dim) {
  return partial.defined() ? fold_batch(partial).narrow(2, 0, head_dim).transpose(1, 2).contiguous()
                           : at::Tensor();
}

TileMap::TileMap(const TiledProblem& problem,
                 const FeatureMapWeights& weights,
                 std::int64_t max_tokens)
    : problem_(problem),
      layer_(weights.layer.defined() ? weights.layer.const_data_ptr<float>() : nullptr),
      bias_(weights.bias.defined() ? weights.bias.const_data_ptr<float>() : nullptr),
      lanes_(padded(max_tokens)),
      x_transposed_(problem.shape.D * lanes_),
      z_(problem.projected * lanes_),
      layer_transposed_(layer_ == nullptr ? 0 : problem.projected * padded(problem.shape.D)) {}

void TileMap::features(Rows x,
                       std::int64_t first,
                       std::int64_t tokens,
                       const float* x_transposed,
                       float* phi,
                       std::int64_t ld) {
  const std::int64_t D = problem_.shape.D, f = problem_.projected, lanes = padded(tokens);
  if (x_transposed == nullptr) {
    transpose(x.row(first), x.ld, tokens, D, x_transposed_.data(), ld);
    x_transposed = x_transposed_.data();
  }
  const float* z = x_transposed;
  if (layer_ != nullptr) {
    multiply(problem_.products,
             {f, tokens, D},
             transposed(layer_ + head_ * D * f, f),
             {x_transposed, ld},
             z_.data(),
             ld,
             false);
    z = z_.data();
  }
  if (bias_ != nullptr) {
    float* biased = z_.data();
    if (z != biased) {
      std::copy(z, z + f * ld, biased);
    }
    add_columns(biased, ld, f, lanes, bias_ + head_ * f);
    z = biased;
  }
  activate_tile(problem_.options, z, ld, f, lanes, phi);
}

void TileMap::backward(const float* phi,
                       const float* dphi,
                       std::int64_t ld,
                       Rows x,
                       std::int64_t first,
                       std::int64_t tokens,
                       float* d_layer,
                       float* d_bias,
                       float* dx,
                       std::int64_t ld_dx) {
  const std::int64_t D = problem_.shape.D, f = problem_.projected;
  const float* dz = z_.data();
  activate_tile_backward(problem_.options, phi, dphi, ld, f, padded(tokens), z_.data());
  if (d_bias != nullptr) {
    add_row_sums(dz, ld, f, tokens, nullptr, d_bias);
  }
  if (d_layer != nullptr) {
    multiply(problem_.products,
             {f, D, tokens},
             as_stored(dz, ld),
             x.right(first),
             d_layer,
             padded(D),
             true);
  }
  if (dx == nullptr) {
    return;
  }
  if (layer_ == nullptr) {
    for (std::int64_t i = 0; i < tokens; ++i) {
      for (std::int64_t d = 0; d < D; ++d) {
        dx[i * ld_dx + d] += dz[d * ld + i];
      }
    }
    return;
  }
  if (layer_transposed_of_ != head_) {
    transpose(layer_ + head_ * D * f, f, D, f, layer_transposed_.data(), padded(D));
    layer_transposed_of_ = head_;
  }
  multiply(problem_.products,
           {tokens, D, f},
           transposed(dz, ld),
           {layer_transposed_.data(), padded(D)},
           dx,
           ld_dx,
           true);
}

void key_features(const TiledProblem& problem,
                  TileMap& map,
                  Rows k,
                  ChunkRange keys,
                  float* phi,
                  std::int64_t ld) {
  map.features(k, keys.begin, keys.tokens(), nullptr, phi, ld);
  clear_sinks(problem, keys.begin, phi, ld);
}

void clear_sinks(const TiledProblem& problem, std::int64_t first_key, float* x, std::int64_t ld) {
  const std::int64_t columns = problem.num_sinks() - first_key;
  if (columns <= 0) {
    return;
  }
  for (std::int64_t f = 0; f < problem.F; ++f) {
    std::fill_n(x + f * ld, columns, 0.0F);
  }
}

}  // namespace hedgerow::kernels::cpu
