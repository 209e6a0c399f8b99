// The choices of the recall cache on the CPU (kernels/problem/recall_cache.hpp has the definition):
// one kv head of one row at a time, in fp32 whatever the products of attention are in. Forward,
// prefill and decode choose and fold by this one code, in one order, so that they agree to the last
// bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/cpu/hybrid_head_cpu.hpp"

namespace hedgerow::kernels::cpu {

// The cache and (S, z) of one kv head of one row while choices are made. Not for other threads.
class RecallHead {
 public:
  explicit RecallHead(const TiledProblem& problem);

  // An empty cache of kv head g, with a state of its own, which is 0.
  void begin(std::int64_t g);
  // The state of key map u of the kv head from here on: S [F, padded(D)], z [F].
  void use_state(std::int64_t u, float* matrix, float* column);
  // The cache of kv head g as positions, k and v hold it, [N] and [N, D] of the inputs' dtype, and
  // back. Its state is to be said.
  void load(std::int64_t g,
            const std::int64_t* positions,
            const at::Tensor& k,
            const at::Tensor& v);
  void store(std::int64_t* positions, const at::Tensor& k, const at::Tensor& v);

  // Where the W keys and values of the chunk go that the next choice is about, rows of width().
  [[nodiscard]] float* chunk_k() { return k_.data() + N_ * width_; }
  [[nodiscard]] float* chunk_v() { return v_.data() + N_ * width_; }
  [[nodiscard]] std::int64_t width() const { return width_; }

  // One choice; the chunk's first token is at `first`.
  void choose(std::int64_t first);
  // (S, z) += phi [v, 1] of one token, rows of width().
  void fold(const float* k, const float* v);
  // Sliding: folds the tokens first .. end of the last choice's chunk, one by one as a decode step
  // does, but for sinks and those that are kept.
  void fold_left(std::int64_t chunk_first, std::int64_t end);

  [[nodiscard]] const std::int64_t* positions() const { return positions_.data(); }
  [[nodiscard]] bool holds(std::int64_t position) const;

 private:
  void score_candidates();
  void fold_dropped();
  void keep_chosen();

  TiledProblem problem_;  // products in fp32
  bool sliding_;
  std::int64_t N_, W_, rows_, lanes_, width_, maps_, g_ = 0;
  TileMap map_k_;
  std::vector<float*> matrices_, columns_;  // by key map of the kv head
  std::vector<std::int64_t> positions_;     // [N], then those of the chunk
  std::vector<std::int64_t> chosen_;        // rows
  std::vector<bool> is_candidate_, is_chosen_;
  // Candidates are the cache's rows and behind them the chunk's; the last chunk stays where it is.
  Scratch k_, v_, next_k_, next_v_, phi_, recalled_, lane_values_, own_;
};

// What the cache holds after each choice that a query of the sequence meets: [choices, B, G, N]
// int64, -1 where no key is, by token. Undefined without any.
at::Tensor recall_choices(const TiledProblem& problem);

// Choice that counts for the queries of a chunk; negative: none.
[[nodiscard]] inline std::int64_t choice_of_chunk(const TiledProblem& problem, std::int64_t chunk) {
  return chunk - (problem.options.window == WindowLayout::kSliding ? 1 : 2);
}

}  // namespace hedgerow::kernels::cpu
