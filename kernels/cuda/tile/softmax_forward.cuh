// The teacher (softmax_attention.hpp), a tile of 64 queries a threadblock, and the walk over tiles
// of keys that it shares with the hybrid's window: scores, running softmax, weighted values.
//
// Keys are met from the diagonal back. So the sums over a window are what the teacher's sums are
// while it is inside it (transfer_forward.cuh), and the teacher's bytes do not depend on who asks.
//
// Grid (tiles, B H), the longest rows first; 128 threads, 16 queries a warp. Shared memory: Q, two
// stages of K and V. Per query 2 D T FLOPs (half of T^2); sums, maxima and exponentials are fp32.
#pragma once

#include "kernels/cuda/tile/pair_tiles.cuh"

namespace hedgerow::kernels::cuda {

// The keys of one kv head. With two stages the next tile is copied while one is read; with one
// stage the same sums take half of the shared memory.
template <int kHeadDim, int kThreads, int kStages = 2>
struct KeyTiles {
  static_assert(kStages == 1 || kStages == 2, "no walk copies further ahead");
  static constexpr int kRowsSize = kTile * kHeadDim;

  GlobalRows k, v;
  int tokens;
  Bf16* stages;  // [2 kStages][kRowsSize]
  bool has_values;

  // The pairs of 16 queries with the keys of tiles from, from - 1, .. to, and then of tiles
  // sinks - 1, .. 0, which lie before `to`. All threads; ends with a barrier.
  HEDGEROW_TILE void walk(Sums<kHeadDim>& y,
                          RunningSoftmax& softmax,
                          Tile<kHeadDim> queries,
                          int query_row,
                          const QueryRows& rows,
                          int from,
                          int to,
                          int sinks) const {
    const float scale = kLog2E / sqrtf(static_cast<float>(kHeadDim));
    const int tiles = from >= to ? from - to + 1 : 0, steps = tiles + sinks;
    const auto tile_at = [&](int step) { return step < tiles ? from - step : steps - 1 - step; };
    if (kStages == 2 && steps > 0) {
      copy(0, tile_at(0));
    }
    HEDGEROW_NO_UNROLL
    for (int step = 0; step < steps; ++step) {
      const int t = tile_at(step), stage = step % kStages;
      if (kStages == 1) {
        copy(0, t);
        wait_for_copies<0>();
      } else if (step + 1 < steps) {
        copy(1 - stage, tile_at(step + 1));
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      sync_threads();
      Sums<kTile> scores;
      const Tile<kHeadDim> keys{stages + 2 * stage * kRowsSize};
      window_scores(scores, queries, query_row, keys, rows, 0, t * kTile, scale);
      scale_rows(y, softmax.take(scores));
      if (has_values) {
        const Left<kTile> weights = as_left(scores);
        add_row_sums(softmax.sums, weights);
        multiply(y, weights, Tile<kHeadDim>{stages + (2 * stage + 1) * kRowsSize});
      } else {
        add_row_sums(softmax.sums, scores);
      }
      sync_threads();
    }
  }

 private:
  HEDGEROW_TILE void copy(int stage, int tile) const {
    const int left = tokens - tile * kTile, valid = left < kTile ? left : kTile;
    Bf16* to = stages + 2 * stage * kRowsSize;
    copy_rows<kTile, kHeadDim, kThreads>(Tile<kHeadDim>{to}, tile_of(k, tile), valid);
    if (has_values) {
      copy_rows<kTile, kHeadDim, kThreads>(Tile<kHeadDim>{to + kRowsSize}, tile_of(v, tile), valid);
    }
    commit_copies();
  }
  HEDGEROW_TILE static GlobalRows tile_of(GlobalRows x, int tile) {
    return {x.data + static_cast<std::int64_t>(tile) * kTile * x.stride, x.stride};
  }
};

HEDGEROW_TILE GlobalRows rows_from(const Rows& x, int batch, int head, int token) {
  return {x.data + batch * x.batch + head * x.head + static_cast<std::int64_t>(token) * x.token,
          x.token};
}
HEDGEROW_TILE GlobalRows rows_or_none(const Rows& x, int batch, int head) {
  return x.data == nullptr ? GlobalRows{nullptr, 0} : rows_from(x, batch, head, 0);
}

// Divides the sums by the weights, of which every query has one: its own.
template <int kHeadDim>
HEDGEROW_TILE void finish_softmax(Sums<kHeadDim>& y, RunningSoftmax& softmax) {
  softmax.finish();
  scale_rows(y, RowPair{{1.0F / softmax.sums.values[0], 1.0F / softmax.sums.values[1]}});
}

template <int kHeadDim>
class SoftmaxTile {
 public:
  static constexpr int kThreads = 128;
  struct alignas(128) Shared {
    Bf16 q[kTile * kHeadDim];  // y on the way out
    Bf16 stages[4 * kTile * kHeadDim];
  };

  HEDGEROW_TILE static void run(const SoftmaxArguments& a, Shared& shared, int tile, int row) {
    const int batch = row / a.H, head = row % a.H, kv_head = head / (a.H / a.G);
    const int left = a.T - tile * kTile, valid = left < kTile ? left : kTile;
    const Tile<kHeadDim> queries{shared.q};
    const int first_row = warp() * kWarpRows;
    copy_rows<kTile, kHeadDim, kThreads>(queries, rows_from(a.q, batch, head, tile * kTile), valid);
    commit_copies();
    const KeyTiles<kHeadDim, kThreads> keys{rows_from(a.k, batch, kv_head, 0),
                                            rows_from(a.v, batch, kv_head, 0),
                                            a.T,
                                            shared.stages,
                                            true};
    Sums<kHeadDim> y;
    y.clear();
    RunningSoftmax softmax;
    keys.walk(y, softmax, queries, first_row, QueryRows::causal(tile, first_row), tile, 0, 0);
    finish_softmax(y, softmax);
    Bf16* out = a.y.data + batch * a.y.batch + head * a.y.head +
                static_cast<std::int64_t>(tile) * kTile * a.y.token;
    store_rounded(queries, first_row, y, out, a.y.token, valid);
  }
};

}  // namespace hedgerow::kernels::cuda
