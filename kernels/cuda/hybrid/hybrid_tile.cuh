// The hybrid of a tile of 64 queries up to its sums, for the kernels that make something of them
// (hybrid_forward.cuh; and, with the teacher's beside them, transfer_forward.cuh and
// cross_entropy_rows.cuh). 128 threads, 16 queries a warp. In order: the window's tiles by running
// softmax; z = Q W and phi_q; near linear pairs (sliding: the tile behind); y += phi_q S. Sums,
// maxima and exponentials are fp32; p, l, phi and S are bf16 as left and right factors.
//
// Shared, of the kernel: q [64, D]; pool, kStages of K and V; linear, which W, phi_k with V, and
// S take in turn and which may overlie the pool; window, fp32 [64, D]; state_sum [F].
#pragma once

#include "kernels/cuda/tile/softmax_forward.cuh"

namespace hedgerow::kernels::cuda {

// Sizes of shared memory, in bf16.
template <typename S>
struct TileSizes {
  static constexpr int larger(int a, int b) { return a > b ? a : b; }
  static constexpr int kRows = kTile * S::kHeadDim;
  static constexpr int kLayer = S::kHeadDim * S::kProjected;
  static constexpr int kFeatures = kTile * S::kFeatures;
  static constexpr int kState = S::kFeatures * S::kHeadDim;
  // W; then phi_k and V of a near tile; then S.
  static constexpr int kLinear = larger(kLayer, larger(kFeatures + kRows, kState));
};

template <typename S, typename Shared>
class HybridTile {
 public:
  static constexpr int kThreads = 128;

 protected:
  using Sizes = TileSizes<S>;

  HEDGEROW_TILE HybridTile(
      const TileArguments& arguments, bool has_values, Shared& shared, int tile, int row)
      : tile_a_(arguments),
        in_(arguments.inputs),
        has_values_(has_values),
        shared_(shared),
        tile_(tile),
        batch_(row / in_.H),
        head_(row % in_.H),
        far_(in_.far_tiles(tile)),
        rows_(QueryRows::of(in_, tile, first_row())) {}

  HEDGEROW_TILE int first_row() const { return warp() * kWarpRows; }
  HEDGEROW_TILE int valid_rows(int tile) const {
    const int left = in_.T - tile * kTile;
    return left < kTile ? left : kTile;
  }
  HEDGEROW_TILE int kv_head() const { return head_ / in_.group(); }
  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.H + head_;
  }
  // Row of the key head in features and states.
  HEDGEROW_TILE std::int64_t key_row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.U + head_ / in_.key_group();
  }
  HEDGEROW_TILE std::int64_t token_index(int r) const {
    return row_index() * in_.T + rows_.query[r];
  }
  HEDGEROW_TILE bool stores_row(int r) const { return rows_.query[r] < in_.T && lane() % 4 == 0; }
  HEDGEROW_TILE bool has_window() const { return in_.layout != Layout::kNone; }
  HEDGEROW_TILE bool has_linear() const {
    return tile_a_.linear && (far_ > 0 || in_.near_linear_end(tile_) > far_);
  }
  HEDGEROW_TILE Tile<S::kHeadDim> queries() const { return {shared_.q}; }

  HEDGEROW_TILE void copy_queries() {
    copy_rows<kTile, S::kHeadDim, kThreads>(
        queries(), rows_from(in_.q, batch_, head_, tile_ * kTile), valid_rows(tile_));
    commit_copies();
  }
  HEDGEROW_TILE KeyTiles<S::kHeadDim, kThreads, Shared::kStages> keys() const {
    return {rows_from(in_.k, batch_, kv_head(), 0),
            rows_or_none(in_.v, batch_, kv_head()),
            in_.T,
            shared_.pool,
            has_values_};
  }
  // Each thread's own.
  HEDGEROW_TILE float& window_value(int n, int i) {
    return shared_.window[(4 * n + i) * kThreads + thread()];
  }

  // All keys, from the diagonal back: the teacher's sums, in y_ and in what is returned. On the way
  // at_window(softmax) is called, once y_ and softmax hold the window's. Where the window ends with
  // a tile and no sink lies before it, those are the teacher's own sums at that place, and no pair
  // is formed twice; elsewhere, as in a sliding window, the teacher starts anew behind the window's
  // walk. A loop of two passes, so that the walk is in a kernel's code once.
  template <typename AtWindow>
  HEDGEROW_TILE RunningSoftmax walk_teacher(const AtWindow& at_window) {
    int sinks = in_.far_sink_tiles(tile_);
    const bool window_is_tiles = in_.near_linear_end(tile_) <= far_ && sinks == 0;
    RunningSoftmax softmax;
    y_.clear();
    QueryRows rows = rows_;
    int from = tile_, to = far_;
    HEDGEROW_NO_UNROLL
    for (int pass = has_window() ? 0 : 1; pass < 2; ++pass) {
      if (pass == 1) {
        rows = QueryRows::causal(tile_, first_row());
        to = 0;
        sinks = 0;
      }
      keys().walk(y_, softmax, queries(), first_row(), rows, from, to, sinks);
      if (pass == 0) {
        at_window(softmax);
        from = far_ - 1;
        if (!window_is_tiles) {
          softmax = RunningSoftmax{};
          y_.clear();
          from = tile_;
        }
      }
    }
    return softmax;
  }

  // The linear branch's sums into y_ and linear_, on top of what y_ holds.
  HEDGEROW_TILE void add_linear() {
    make_features();
    walk_near();
    add_state();
  }

  // The sum of all weights.
  HEDGEROW_TILE float denominator(int r) const {
    const float epsilon = has_window() ? 0.0F : kEpsilon;
    return window_.values[r] + linear_.values[r] + epsilon;
  }

 private:
  // phi_q, as a left factor, and its dot with z.
  HEDGEROW_TILE void make_features() {
    const Tile<S::kProjected> layer{shared_.linear};
    if (in_.map_q.layer != nullptr) {
      const GlobalRows rows{in_.map_q.layer + static_cast<std::int64_t>(head_) * Sizes::kLayer,
                            S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(layer, rows, S::kHeadDim);
    }
    commit_copies();
    if (far_ > 0) {
      const float* sums = tile_a_.far.sums + (key_row_index() * in_.tiles() + far_) * S::kFeatures;
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        shared_.state_sum[f] = sums[f];
      }
    }
    wait_for_copies<0>();
    sync_threads();
    Sums<S::kProjected> z, phi;
    project<S>(z, in_.map_q, head_, queries(), first_row(), layer);
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      const MapFunction function = in_.map_q.function;
      activate(phi, z, function, sign_of(s), row_statistics(z, function, sign_of(s)));
      round_to_bf16(phi);
      place<S>(phi_, phi, s);
      if (far_ > 0) {
        add_weighted_sums(linear_, phi, shared_.state_sum + s * S::kProjected);
      }
    }
    sync_threads();
  }

  HEDGEROW_TILE void walk_near() {
    const Tile<S::kFeatures> features{shared_.linear};
    const Tile<S::kHeadDim> values{shared_.linear + Sizes::kFeatures};
    HEDGEROW_NO_UNROLL
    for (int t = far_; t < in_.near_linear_end(tile_) && t <= tile_; ++t) {
      const std::int64_t index = key_row_index() * in_.tiles() + t;
      copy_rows<kTile, S::kFeatures, kThreads>(
          features, {tile_a_.features_k + index * Sizes::kFeatures, S::kFeatures}, kTile);
      if (has_values_) {
        copy_rows<kTile, S::kHeadDim, kThreads>(
            values, rows_from(in_.v, batch_, kv_head(), t * kTile), valid_rows(t));
      }
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      Sums<kTile> products;
      products.clear();
      multiply_transposed(products, phi_, features);
      keep_linear(products, rows_, t * kTile);
      if (has_values_) {
        const Left<kTile> weights = as_left(products);
        add_row_sums(linear_, weights);
        multiply(y_, weights, values);
      } else {
        add_row_sums(linear_, products);
      }
      sync_threads();
    }
  }

  HEDGEROW_TILE void add_state() {
    if (far_ == 0 || !has_values_) {
      return;
    }
    const Tile<S::kHeadDim> state{shared_.linear};
    const Bf16* from = tile_a_.far.states + (key_row_index() * in_.tiles() + far_) * Sizes::kState;
    copy_rows<S::kFeatures, S::kHeadDim, kThreads>(state, {from, S::kHeadDim}, S::kFeatures);
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
    multiply(y_, phi_, state);
  }

  const TileArguments& tile_a_;

 protected:
  const HybridInputs& in_;
  const bool has_values_;
  Shared& shared_;
  int tile_, batch_, head_, far_;
  QueryRows rows_;
  Sums<S::kHeadDim> y_;
  Left<S::kFeatures> phi_;
  RowPair window_{{0.0F, 0.0F}}, linear_{{0.0F, 0.0F}};  // sums of p; of l, this lane's columns
};

}  // namespace hedgerow::kernels::cuda
