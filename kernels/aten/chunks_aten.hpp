// What the ATen backends share: the layouts in which one batched product covers all chunks of all
// heads, the masks of a chunk's tile, sums over chunks, and a map with its gradient. Nothing here
// waits for the device, scatters, or sums in an order that the device chooses; the same call gives
// the same bytes. Called by the x_aten.cpp files.
//
// T tokens are N chunks of C, the last one padded with zeros. The tile of a chunk's queries holds
// the keys of its own chunk, behind those of the previous one where there is a window. Query heads
// H = G R: heads that share keys lie as rows below each other, so that keys and values are not
// repeated for them, and sums over a group happen inside a product.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels::aten {

struct Chunks {
  explicit Chunks(const HybridProblem& problem);

  std::int64_t B, G, R, T, D, F, C, N;
  std::int64_t K;  // key maps, and states, a kv head: R or 1
  std::int64_t S;  // sinks, which are the last keys of every tile
  WindowLayout layout;
  std::int64_t window_size;
  at::TensorOptions options;  // of sums: the problem's device, fp32 (fp64 for fp64 input)

  // Chunks of keys in front of a tile's own.
  [[nodiscard]] std::int64_t lead() const { return layout == WindowLayout::kNone ? 0 : 1; }
  [[nodiscard]] std::int64_t tile_keys() const { return (1 + lead()) * C + S; }
  // Query chunks from first_with_state() on see keys that lie before their tile; there are
  // with_state() of them, and as many chunks of such keys, from chunk 0 on.
  [[nodiscard]] std::int64_t first_with_state() const { return 1 + lead(); }
  [[nodiscard]] std::int64_t with_state() const {
    return std::max<std::int64_t>(0, N - 1 - lead());
  }
  // Linear pairs inside the tile: all of them in its first chunk of keys.
  [[nodiscard]] bool has_near() const { return layout != WindowLayout::kTerraced; }

  // [B, H, T, n] <-> [B, G, N, R, C, n]
  [[nodiscard]] at::Tensor query_chunks(const at::Tensor& x) const;
  [[nodiscard]] at::Tensor query_tokens(const at::Tensor& x) const;
  // [B, G, T, n] <-> [B, G, lead + N, C, n]; a chunk of zeros leads.
  [[nodiscard]] at::Tensor key_chunks(const at::Tensor& x) const;
  [[nodiscard]] at::Tensor key_tokens(const at::Tensor& x) const;
  // Features of keys: [B, G K, T, F] <-> [B, G, lead + N, C, K, F]; those of sinks are zero in
  // chunks, so that no state and no linear pair has them.
  [[nodiscard]] at::Tensor feature_chunks(const at::Tensor& phi) const;
  [[nodiscard]] at::Tensor feature_tokens(const at::Tensor& phi) const;
  // x [B, G, n, R, ..] of query heads -> [B, G, n, K, ..]: the sum over those that share a key map.
  [[nodiscard]] at::Tensor by_key_map(const at::Tensor& x) const;
  // [B, G, lead + N, C, n] -> the chunks' tiles [B, G, N, tile_keys, n]; and the sum of what tiles
  // give to chunks.
  [[nodiscard]] at::Tensor tiles(const at::Tensor& chunks) const;
  void add_tiles(at::Tensor& chunks, const at::Tensor& tiles) const;

  // Pairs outside the window, [N, 1, C, tile_keys] bool; pairs of the first chunk of a tile's keys
  // that are not linear, [N, 1, C, C] bool.
  [[nodiscard]] at::Tensor outside_window() const;
  [[nodiscard]] at::Tensor not_near() const;

 private:
  [[nodiscard]] at::Tensor padded(const at::Tensor& x, std::int64_t chunks_in_front) const;
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> lags_and_keys() const;
};

// window_begin of every query of an int64 tensor.
[[nodiscard]] at::Tensor window_begins(const at::Tensor& queries, const HybridOptions& options);

// window_gain of every query of an int64 tensor, in `dtype`; undefined without a cap.
[[nodiscard]] at::Tensor window_gains(const at::Tensor& queries,
                                      const HybridOptions& options,
                                      at::ScalarType dtype);

// x [.., .., N, ..] += what lies before (with `reverse`, after) along dimension 2, in place and in
// a fixed order: no scan of the device's own, whose order may vary. About 2 sqrt(N) launches.
void accumulate_chunks(at::Tensor& x, bool reverse);

// phi(x) [B, H, T, F], and from dphi the gradients of what it was asked to differentiate.
class DifferentiableMap {
 public:
  DifferentiableMap(const at::Tensor& x,
                    const FeatureMapWeights& weights,
                    const FeatureMapOptions& options,
                    std::int64_t num_heads,
                    FeatureMapRole role,
                    bool needs_x,
                    bool needs_weights);

  [[nodiscard]] const at::Tensor& phi() const { return phi_; }

  struct Gradients {
    at::Tensor x;  // of the sums' dtype
    FeatureMapWeights weights;
  };
  [[nodiscard]] Gradients backward(const at::Tensor& dphi) const;

 private:
  at::Tensor x_, with_graph_, phi_;
  FeatureMapWeights weights_;
};

// Some sequences and kv heads of a problem, as a problem of their own.
struct Part {
  HybridProblem problem;
  std::int64_t b, num_b, h, num_h, g, num_g;

  // The part's own of a tensor of the whole problem: [B, H, ..], [B, G, ..], [H, ..], and [H or G,
  // ..] of key maps.
  [[nodiscard]] at::Tensor queries(const at::Tensor& x) const;
  [[nodiscard]] at::Tensor keys(const at::Tensor& x) const;
  [[nodiscard]] at::Tensor heads(const at::Tensor& x) const;
  [[nodiscard]] at::Tensor key_maps(const at::Tensor& x) const;

  // whole += the part's own gradient, if both are defined: of window factors, and of maps.
  void add_heads(const at::Tensor& whole, const at::Tensor& own) const;
  void add_query_map(const FeatureMapWeights& whole, const FeatureMapWeights& own) const;
  void add_key_map(const FeatureMapWeights& whole, const FeatureMapWeights& own) const;
};
// Parts so small that a temporary of `elements` a kv head of a sequence holds `part_elements` at
// most (one kv head of one sequence at the least), so that temporaries do not grow with the batch.
inline constexpr std::int64_t kPartElements = std::int64_t{1} << 27;
[[nodiscard]] std::vector<Part> parts_of(const HybridProblem& problem,
                                         std::int64_t elements,
                                         std::int64_t part_elements);

// Backends that need all keys at once walk tiles of queries: O(T) memory, few launches. How many
// queries a tile holds.
inline constexpr std::int64_t kFewestQueries = 16;
[[nodiscard]] std::int64_t query_tile(std::int64_t num_sequences_and_heads, std::int64_t T);

}  // namespace hedgerow::kernels::aten
