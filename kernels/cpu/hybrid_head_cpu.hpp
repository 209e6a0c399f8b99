// The parts of one head's walk that the hybrid's forward and backward share: where chunks, tiles
// and branches lie, fp32 views of the inputs, feature tiles, and scratch that a thread reuses from
// head to head.
#pragma once

#include <array>
#include <vector>

#include "kernels/cpu/attention_tiles.hpp"
#include "kernels/cpu/hybrid_attention_cpu.hpp"

namespace hedgerow::kernels::cpu {

// Scratch of one thread, 64-byte aligned and zeroed when made. Its memory is kept for the thread's
// next scratch (up to kMostKept floats a piece, what a segment needs), so that a step which repeats
// the last one's shapes allocates none.
class Scratch {
 public:
  explicit Scratch(std::int64_t floats);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] float* data() { return aligned_; }
  void clear();

 private:
  static constexpr std::size_t kFloatsPerLine = 16;
#ifdef __SANITIZE_ADDRESS__
  static constexpr std::size_t kMostKept = 0;  // an access behind the end must be seen
#else
  static constexpr std::size_t kMostKept = std::size_t{1} << 20;
#endif
  // The pieces that this thread's earlier scratch had.
  static std::vector<std::vector<float>>& kept();

  std::vector<float> storage_;
  float* aligned_;
};

// Rows of fp32: tokens first, first + 1, ... of one head's [T, D], padded to whole vectors.
struct Rows {
  const float* data = nullptr;
  std::int64_t ld = 0, first = 0;
  [[nodiscard]] const float* row(std::int64_t i) const { return data + (i - first) * ld; }
  [[nodiscard]] Right right(std::int64_t i) const { return {row(i), ld}; }
};

// One [B, heads, T, D] tensor as Rows: read in place where it is fp32 and D fills whole vectors,
// else widened into scratch, `max_rows` of one head at a time.
class HeadRows {
 public:
  explicit HeadRows(const at::Tensor& x) : HeadRows(x, x.size(2)) {}
  HeadRows(const at::Tensor& x, std::int64_t max_rows);
  // The view holds until the next call. Tokens first .. end.
  Rows rows(std::int64_t b, std::int64_t head) { return rows(b, head, 0, x_.size(2)); }
  Rows rows(std::int64_t b, std::int64_t head, std::int64_t first, std::int64_t end);

 private:
  const at::Tensor& x_;
  bool in_place_;
  std::int64_t ld_;
  Scratch space_;
};

// Some queries of one chunk and the keys that meet them outside the state: key rows keys_begin ..
// end, of which rows keys_begin .. linear_end hold (also) linear pairs and all hold window pairs if
// there is a window. Its tiles of the window's pairs begin with num_sinks further rows, those of
// the sinks where keys_begin lies behind them; window_mask is of such a tile. The linear mask knows
// no sinks: their features are 0 (key_features).
struct QueryTile {
  std::int64_t begin, end, keys_begin, linear_end, num_sinks;
  TileMask window_mask, linear_mask;
  [[nodiscard]] std::int64_t queries() const { return end - begin; }
  [[nodiscard]] std::int64_t keys() const { return end - keys_begin; }
  [[nodiscard]] std::int64_t window_rows() const { return num_sinks + keys(); }
  [[nodiscard]] std::int64_t linear_rows() const { return linear_end - keys_begin; }
};
QueryTile query_tile(const TiledProblem& problem, std::int64_t begin);
// gates [padded(queries)]: the head's gate times window_gain of each query; of the head alone
// without a cap.
void query_gates(const TiledProblem& problem, const QueryTile& tile, float gate, float* gates);

struct ChunkRange {
  std::int64_t begin, end;
  [[nodiscard]] std::int64_t tokens() const { return end - begin; }
};
ChunkRange chunk_range(const TiledProblem& problem, std::int64_t chunk);

// Calls visit(tile) for the query tiles of one chunk in ascending order.
template <typename Visit>
void for_tiles(const TiledProblem& problem, std::int64_t chunk, const Visit& visit) {
  const ChunkRange range = chunk_range(problem, chunk);
  for (std::int64_t begin = range.begin; begin < range.end; begin += TiledProblem::kQueryTile) {
    visit(query_tile(problem, begin));
  }
}

// Partial gradients a (batch, head) folded over the batch in ascending order, so that no result
// depends on the number of threads; undefined stays undefined. partial [B, H, ...] -> [H, ...].
at::Tensor fold_batch(const at::Tensor& partial);
// partial [B, H, f, padded(D)] -> [H, D, f].
at::Tensor fold_layer(const at::Tensor& partial, std::int64_t head_dim);

// One side's map on tiles of tokens.
class TileMap {
 public:
  TileMap(const TiledProblem& problem, const FeatureMapWeights& weights, std::int64_t max_tokens);
  void select_head(std::int64_t head) { head_ = head; }
  // phi [F, padded(tokens)], row stride ld, from x [tokens, D]; x_transposed [D, padded(tokens)] if
  // the caller has it.
  void features(Rows x,
                std::int64_t first,
                std::int64_t tokens,
                const float* x_transposed,
                float* phi,
                std::int64_t ld);
  // dz [projected, tokens] of the last features' tile shape -> the caller's accumulators; any may
  // be null. d_layer [f, padded(D)] += dz x; d_bias [f] += row sums of dz; dx [tokens, padded(D)]
  // += dz^T layer^T.
  void backward(const float* phi,
                const float* dphi,
                std::int64_t ld,
                Rows x,
                std::int64_t first,
                std::int64_t tokens,
                float* d_layer,
                float* d_bias,
                float* dx,
                std::int64_t ld_dx);

 private:
  const TiledProblem& problem_;
  const float* layer_;  // [H, D, f] or null
  const float* bias_;   // [H, f] or null
  std::int64_t head_ = 0, lanes_;
  Scratch x_transposed_, z_, layer_transposed_;
  std::int64_t layer_transposed_of_ = -1;
};

// phi_k of one chunk's keys; columns of sinks, which are never linear, are 0.
void key_features(const TiledProblem& problem,
                  TileMap& map,
                  Rows k,
                  ChunkRange keys,
                  float* phi,
                  std::int64_t ld);
// x [F, keys]: zeroes the columns of sinks among the keys first_key, first_key + 1, ...
void clear_sinks(const TiledProblem& problem, std::int64_t first_key, float* x, std::int64_t ld);

}  // namespace hedgerow::kernels::cpu
