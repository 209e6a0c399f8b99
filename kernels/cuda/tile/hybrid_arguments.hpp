// What the hybrid's CUDA kernels are given: plain pointers and sizes, so that neither nvcc nor the
// host emulation needs LibTorch. hybrid_attention_cuda.cpp fills them in; strides are in elements;
// every pointer to bf16 is aligned to 16 bytes and every stride of rows is a multiple of 8.
//
// A tile is 64 tokens, whatever the window. For a tile c of queries the keys fall in three parts:
//
//   tiles 0 .. far_tiles(c) - 1   linear for every query of the tile: they come in through the
//                                 state S[far_tiles(c)] = sum of phi_k v^T over the tiles before
//   tiles far_tiles(c) .. c       pair by pair: softmax at or after window_begin(i), linear before
//
// Sinks, a sequence's first tokens, are softmax wherever they lie: states hold no feature of them,
// and where a tile of them is far (sink_tiles), it is met pair by pair too.
#pragma once

#include <cstdint>

#include "kernels/options/attention_options.hpp"

#if defined(__CUDACC__)
#define HEDGEROW_BOTH __host__ __device__ inline
#else
#define HEDGEROW_BOTH inline
#endif

namespace hedgerow::kernels::cuda {

inline constexpr int kTile = 64;         // tokens of a tile
inline constexpr int kWarpsOfTile = 4;   // that share the rows of a tile of queries
inline constexpr int kMostRows = 65535;  // heads of a batch: CUDA launches no larger grid.y
inline constexpr float kEpsilon =
    1e-12F;  // kLinearEpsilon: beside the denominator without a window

using Layout = WindowLayout;

// phi(z): an activation of kernels/maps, as FeatureMapRow::activation names it, and its t.
struct MapFunction {
  FeatureMapKind kind = FeatureMapKind::kHedgehogSoftmax;
  float temperature = 1.0F;
};

// First key of query i's window; keys before it are linear.
HEDGEROW_BOTH int window_begin(Layout layout, int window, int query) {
  int first = query + 1;
  if (layout == Layout::kSliding) {
    first = query - window + 1;
  } else if (layout == Layout::kTerraced) {
    first = (query / window - 1) * window;
  }
  return first > 0 ? first : 0;
}

// HybridOptions as device code reads it; made by window_arguments of hybrid_problem_cuda.hpp.
struct WindowArguments {
  Layout layout = Layout::kNone;
  int window = 0;
  int sinks = 0;       // that the sequence has
  int linear_cap = 0;  // 0: none

  [[nodiscard]] HEDGEROW_BOTH int begin(int query) const {
    return window_begin(layout, window, query);
  }
  // max(1, n / linear_cap) of n linear keys (window_gain of kernels/problem/hybrid_parameters.hpp).
  [[nodiscard]] HEDGEROW_BOTH float gain(int linear_keys) const {
    return linear_cap > 0 && linear_keys > linear_cap
               ? static_cast<float>(linear_keys) / static_cast<float>(linear_cap)
               : 1.0F;
  }
};

// Which of the compiled kernels: head_dim, columns of the map, and whether features double.
struct KernelShape {
  int head_dim, projected;
  bool negation;
  [[nodiscard]] HEDGEROW_BOTH int features() const { return negation ? 2 * projected : projected; }
};

struct Rows {  // [B, heads, T, D] bf16
  const std::uint16_t* data = nullptr;
  std::int64_t batch = 0, head = 0, token = 0;
};

struct OutputRows {  // the same, written
  std::uint16_t* data = nullptr;
  std::int64_t batch = 0, head = 0, token = 0;
};

struct Map {
  MapFunction function;
  const std::uint16_t* layer = nullptr;  // [H or U, D, f] bf16; null: x itself, f = D
  const float* bias = nullptr;           // [H or U, f]; null: none
};

// Sizes and inputs that all kernels of a problem share.
struct HybridInputs : WindowArguments {
  int B = 0, H = 0, G = 0, T = 0;
  int U = 0;  // key heads, of map_k and the states of keys: H or G
  Rows q, k, v;
  Map map_q, map_k;
  const float* gate = nullptr;  // [H] sigmoid(window_factors); null with kNone

  // Query heads that share a kv head, and that share a key head.
  [[nodiscard]] HEDGEROW_BOTH int group() const { return H / G; }
  [[nodiscard]] HEDGEROW_BOTH int key_group() const { return H / U; }
  [[nodiscard]] HEDGEROW_BOTH int tiles() const { return (T + kTile - 1) / kTile; }
  [[nodiscard]] HEDGEROW_BOTH int far_tiles(int tile) const { return begin(64 * tile) / 64; }
  // Tiles from far_tiles(tile) up to here hold (also) linear pairs.
  [[nodiscard]] HEDGEROW_BOTH int near_linear_end(int tile) const {
    const int last = 64 * tile + 63;
    return (begin(last) + 63) / 64;
  }
  // Tiles of keys, from the first on, that hold sinks; of those that are far for a tile of queries.
  [[nodiscard]] HEDGEROW_BOTH int sink_tiles() const { return (sinks + kTile - 1) / kTile; }
  [[nodiscard]] HEDGEROW_BOTH int far_sink_tiles(int tile) const {
    const int far = far_tiles(tile), tiles_of_sinks = sink_tiles();
    return far < tiles_of_sinks ? far : tiles_of_sinks;
  }
  // The first tile of queries whose state holds this tile of keys; tiles() if there is none.
  [[nodiscard]] HEDGEROW_BOTH int first_far_query_tile(int tile) const {
    int c = tile + 1;
    while (c < tiles() && far_tiles(c) <= tile) {
      ++c;
    }
    return c;
  }
};

// S and z, as sums over tiles: `prefix` entries hold the tiles before, else those from here on.
// There are U heads for keys and H for queries.
struct States {
  std::uint16_t* states = nullptr;  // [B, U or H, tiles, F, D] bf16
  float* sums = nullptr;            // [B, U or H, tiles, F]
};

// The walk that makes States of one side: phi(x) and the values that it carries.
struct StatesArguments {
  HybridInputs inputs;
  bool prefix = true;  // keys with their values; else queries with dn, from the end
  Rows x, values;      // x [B, H or G, T, D]; values [B, H or G, T, D]
  int x_heads = 0;     // of both
  int heads = 0;       // of map and states: U or H
  Map map;
  int skipped = 0;                 // tokens, from the first on, whose features are 0
  const float* weights = nullptr;  // [B, heads, T]: what sums adds up per token; null: 1
  States out;
  std::uint16_t* features =
      nullptr;              // [B, heads, 64 tiles, F] bf16, kept for near pairs; may be null
  int segments = 1;         // walks that run beside one another
  float* totals = nullptr;  // [B, heads, segments, F, D + 1] fp32 where segments > 1
};

// What a tile of queries attends to.
struct TileArguments {
  HybridInputs inputs;
  bool linear = true;  // else the window and the sinks alone (window_attention.hpp)
  States far;
  const std::uint16_t* features_k = nullptr;  // [B, U, 64 tiles, F], where there are near pairs
};

struct ForwardArguments : TileArguments {
  bool has_values = true;  // else only the denominators
  void* y = nullptr;       // [B, H, T, D] by the strides, bf16 or fp32
  bool y_is_float = false;
  std::int64_t y_batch = 0, y_head = 0, y_token = 0;
  std::uint16_t* rest = nullptr;  // [B, H, T, D] what rounding took from a bf16 y; null: not kept
  std::uint16_t* pull = nullptr;  // [B, H, T, D] sum_window p (v - y); null: not kept
  float* denominator = nullptr;   // [B, H, T]
  float* linear_mass = nullptr;   // [B, H, T]
  float* maxima = nullptr;        // [B, H, T] log2(e) s of the window's maximum; null: not kept
  float* ties = nullptr;          // [B, H, T] keys at the maximum
};

// Attention transfer: the teacher, the hybrid, and what the mean squared error between them sends
// back.
struct TransferArguments : TileArguments {
  OutputRows y_true;
  float* squared = nullptr;  // [B, H, tiles, 4] sum of (y - y_true)^2, a warp's rows each
  float factor = 0.0F;       // dy = factor (y - y_true)
  // As PrepareArguments; dn null: no gradients.
  std::uint16_t* dn = nullptr;  // [B, H, T, D]
  float* beta = nullptr;        // [B, H, T]
  float* totals = nullptr;      // [B, H, T] t_i; null with kNone
};

// The teacher alone.
struct SoftmaxArguments {
  int B = 0, H = 0, G = 0, T = 0;
  Rows q, k, v;
  OutputRows y;
};

}  // namespace hedgerow::kernels::cuda
