// The queries' side of the hybrid's backward (derivation: hybrid_backward_walker.hpp), a tile of 64
// queries at a time: dphi_q = dn S^T + beta z (and near pairs), dz, the partial dW_q and db_q. With
// kInputs also dq, from scores that are computed again as the forward did, so that the maximum is
// met bit for bit. A far tile of sinks, whose pairs are at hand there, gets its part of dk and dv
// too: written for each tile of queries, folded by the caller.
//
// Grid (parts, B H), 256 threads (map_backward.cuh says how they share a tile; of a tile of pairs a
// warp holds 16 queries and half of the keys, of dq half of D). Without kInputs no score is
// computed at all. Per query 2 F D + 4 D f FLOPs, with kInputs + 6 D (keys of its tiles and of far
// tiles of sinks) + 2 D f.
#pragma once

#include "kernels/cuda/hybrid/map_backward.cuh"

namespace hedgerow::kernels::cuda {

template <typename S, bool kInputs>
class BackwardQueries {
 public:
  static constexpr int kThreads = kBackwardThreads;
  static constexpr int kHalfDim = S::kHeadDim / 2;
  static constexpr int kKeys = kTile / 2;  // of a warp
  static constexpr int kRowsSize = kTile * S::kHeadDim;
  static constexpr int kLayerSize = S::kHeadDim * S::kProjected;
  static constexpr int kFeaturesSize = kTile * S::kFeatures;
  static constexpr int kStateSize = S::kFeatures * S::kHeadDim;
  static constexpr int larger(int a, int b) { return a > b ? a : b; }

  struct alignas(128) Shared {
    Bf16 q[kRowsSize];  // dq on the way out
    Bf16 dn[kRowsSize];
    Bf16 layer[kLayerSize];
    // S; then phi_k and V of a near tile; then K and V of a window tile.
    Bf16 pool[larger(kStateSize, larger(kFeaturesSize + kRowsSize, 2 * kRowsSize))];
    Bf16 pairs[kTile * kTile];  // dl or ds
    typename MapBackward<S>::Shared map;
  };

  HEDGEROW_TILE BackwardQueries(const BackwardArguments& arguments,
                                Shared& shared,
                                int part,
                                int row)
      : a_(arguments),
        in_(arguments.inputs),
        shared_(shared),
        map_(shared.map),
        part_(part),
        batch_(row / in_.H),
        head_(row % in_.H) {}

  HEDGEROW_TILE void run() {
    if (in_.map_q.layer != nullptr) {
      const GlobalRows rows{in_.map_q.layer + static_cast<std::int64_t>(head_) * kLayerSize,
                            S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(layer(), rows, S::kHeadDim);
    }
    map_.clear_part();
    const int first = part_ * a_.tiles_per_part;
    HEDGEROW_NO_UNROLL
    for (int tile = first; tile < first + a_.tiles_per_part && tile < in_.tiles(); ++tile) {
      walk_tile(tile);
    }
    const std::int64_t index = static_cast<std::int64_t>(part_) * in_.B * in_.H + row_index();
    map_.store_part(a_.layer_q != nullptr ? a_.layer_q + index * kLayerSize : nullptr,
                    a_.bias_q != nullptr ? a_.bias_q + index * S::kProjected : nullptr);
  }

 private:
  HEDGEROW_TILE int valid_rows(int tile) const {
    const int left = in_.T - tile * kTile;
    return left < kTile ? left : kTile;
  }
  HEDGEROW_TILE GlobalRows rows_of(const Rows& x, int head, int tile) const {
    return {x.data + batch_ * x.batch + head * x.head +
                static_cast<std::int64_t>(tile) * kTile * x.token,
            x.token};
  }
  HEDGEROW_TILE int kv_head() const { return head_ / in_.group(); }
  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.H + head_;
  }
  HEDGEROW_TILE std::int64_t key_row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.U + head_ / in_.key_group();
  }
  HEDGEROW_TILE float of_row(const float* x, int r) const {
    return rows_.query[r] < in_.T ? x[row_index() * in_.T + rows_.query[r]] : 0.0F;
  }
  HEDGEROW_TILE Tile<S::kHeadDim> queries() const { return {shared_.q}; }
  HEDGEROW_TILE Tile<S::kHeadDim> dn() const { return {shared_.dn}; }
  HEDGEROW_TILE Tile<S::kProjected> layer() const { return {shared_.layer}; }
  HEDGEROW_TILE Tile<kTile> pairs() const { return {shared_.pairs}; }

  HEDGEROW_TILE void walk_tile(int tile) {
    const int far = in_.far_tiles(tile);
    rows_ = QueryRows::of(in_, tile, group_row());
    beta_ = {{of_row(a_.beta, 0), of_row(a_.beta, 1)}};
    copy_rows<kTile, S::kHeadDim, kThreads>(
        queries(), rows_of(in_.q, head_, tile), valid_rows(tile));
    copy_rows<kTile, S::kHeadDim, kThreads>(dn(), rows_of(a_.dn, head_, tile), valid_rows(tile));
    if (far > 0) {
      const std::int64_t index = key_row_index() * in_.tiles() + far;
      copy_rows<S::kFeatures, S::kHeadDim, kThreads>(
          Tile<S::kHeadDim>{shared_.pool},
          {a_.far.states + index * kStateSize, S::kHeadDim},
          S::kFeatures);
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        map_.state_sums()[f] = a_.far.sums[index * S::kFeatures + f];
      }
    }
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
    const bool linear = far > 0 || in_.near_linear_end(tile) > far;
    if (linear) {
      map_.clear_tile();
      if (far > 0) {
        map_.add_state(dn(), Tile<S::kHeadDim>{shared_.pool}, map_.state_sums(), beta_);
      }
      take_near(tile, far);
      map_.run(in_.map_q,
               head_,
               queries(),
               layer(),
               {0, valid_rows(tile)},
               a_.bias_q != nullptr,
               nullptr);
      map_.add_gradients(queries(), a_.layer_q != nullptr, a_.bias_q != nullptr);
    }
    if constexpr (kInputs) {
      if (a_.dq != nullptr || a_.sink_k != nullptr) {
        input_gradient(tile, far, linear);
      }
    }
    sync_threads();
  }

  // da of 16 queries and half a tile of keys, whose values are at hand.
  HEDGEROW_TILE void pair_gradients(Sums<kKeys>& da, Tile<S::kHeadDim> values) {
    da.clear();
    multiply_transposed(da, dn(), group_row(), values, half() * kKeys);
    HEDGEROW_UNROLL
    for (int n = 0; n < da.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        da.values[n][i] += beta_.values[i / 2];
      }
    }
  }

  HEDGEROW_TILE void take_near(int tile, int far) {
    const Tile<S::kFeatures> features{shared_.pool};
    const Tile<S::kHeadDim> values{shared_.pool + kFeaturesSize};
    HEDGEROW_NO_UNROLL
    for (int t = far; t < in_.near_linear_end(tile) && t <= tile; ++t) {
      sync_threads();
      const std::int64_t index = key_row_index() * in_.tiles() + t;
      copy_rows<kTile, S::kFeatures, kThreads>(
          features, {a_.features_k + index * kFeaturesSize, S::kFeatures}, kTile);
      copy_rows<kTile, S::kHeadDim, kThreads>(values, rows_of(in_.v, kv_head(), t), valid_rows(t));
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      Sums<kKeys> da;
      pair_gradients(da, values);
      keep_linear(da, rows_, t * kTile + half() * kKeys);
      store_sums(pairs(), da, group_row(), half() * kKeys);
      sync_threads();
      HEDGEROW_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        Word left[4];
        load_left(left, pairs(), group_row(), k);
        map_.add_pairs(left, features, 16 * k);
      }
    }
  }

  // dq = dz W^T + ds K of the window.
  HEDGEROW_TILE void input_gradient(int tile, int far, bool linear) {
    Sums<kHalfDim> dq;
    dq.clear();
    if (linear) {
      map_.add_input_gradient(dq, in_.map_q, layer());
    }
    if (in_.layout != Layout::kNone) {
      window_gradient(dq, tile, far);
    }
    if (a_.dq == nullptr) {
      return;
    }
    constexpr int kUnits = S::kHeadDim / kUnit;
    sync_threads();
    store_sums(queries(), dq, group_row(), half() * kHalfDim);
    sync_threads();
    for (int i = thread(); i < kTile * kUnits; i += kThreads) {
      const int row = i / kUnits, unit = i % kUnits, query = tile * kTile + row;
      if (query < in_.T) {
        copy_unit(a_.dq + (row_index() * in_.T + query) * S::kHeadDim + unit * kUnit,
                  queries().unit(row, unit));
      }
    }
  }

  HEDGEROW_TILE void window_gradient(Sums<kHalfDim>& dq, int tile, int far) {
    const Tile<S::kHeadDim> keys{shared_.pool}, values{shared_.pool + kRowsSize};
    const float root = sqrtf(static_cast<float>(S::kHeadDim));
    RowPair maxima, shares;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      maxima.values[r] = of_row(a_.maxima, r);
      shares.values[r] = rows_.query[r] < in_.T ? of_row(a_.totals, r) / of_row(a_.ties, r) : 0.0F;
    }
    const int sinks = in_.far_sink_tiles(tile);  // tiles of them; then the window's
    HEDGEROW_NO_UNROLL
    for (int step = 0; step < sinks + tile + 1 - far; ++step) {
      const int t = step < sinks ? step : far + step - sinks;
      sync_threads();
      copy_rows<kTile, S::kHeadDim, kThreads>(keys, rows_of(in_.k, kv_head(), t), valid_rows(t));
      copy_rows<kTile, S::kHeadDim, kThreads>(values, rows_of(in_.v, kv_head(), t), valid_rows(t));
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      Sums<kKeys> scores, da;
      const int column = half() * kKeys;
      window_scores(
          scores, queries(), group_row(), keys, rows_, column, t * kTile + column, kLog2E / root);
      pair_gradients(da, values);
      score_gradients(da, scores, maxima, shares, rows_.gates(in_, head_), 1.0F / root);
      store_sums(pairs(), da, group_row(), column);
      sync_threads();
      multiply(dq, pairs(), group_row(), keys, half() * kHalfDim);
      if (step < sinks && a_.sink_k != nullptr) {
        add_to_sinks(a_.sink_k, tile, t, queries());
        sync_threads();
        store_sums(pairs(), scores, group_row(), column);
        sync_threads();
        add_to_sinks(a_.sink_v, tile, t, dn());
      }
    }
  }

  // pairs^T x of the sinks in tile t of keys, 16 of them and 16 columns a warp at a time: a tile of
  // queries has all of its pairs with them at once.
  HEDGEROW_TILE void add_to_sinks(float* out, int tile, int t, Tile<S::kHeadDim> x) {
    constexpr int kColumns = 16;
    const int column = warp() * kColumns;
    const int first = t * kTile, count = in_.sinks - first < kTile ? in_.sinks - first : kTile;
    if (column >= S::kHeadDim) {
      return;
    }
    const std::int64_t from = tile - in_.first_far_query_tile(0);
    float* rows = out + ((from * in_.B * in_.H + row_index()) * in_.sinks + first) * S::kHeadDim;
    HEDGEROW_NO_UNROLL
    for (int row = 0; row < count; row += kWarpRows) {
      Sums<kColumns> sums;
      sums.clear();
      HEDGEROW_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        Word left[4];
        load_left_transposed(left, pairs(), row, k);
        multiply_step(sums, left, x, 16 * k, column);
      }
      HEDGEROW_UNROLL
      for (int n = 0; n < sums.kGroups; ++n) {
        HEDGEROW_UNROLL
        for (int i = 0; i < 4; ++i) {
          if (row + row_of(i) < count) {
            rows[(row + row_of(i)) * S::kHeadDim + column + column_of(n, i)] = sums.values[n][i];
          }
        }
      }
    }
  }

  const BackwardArguments& a_;
  const HybridInputs& in_;
  Shared& shared_;
  MapBackward<S> map_;
  int part_, batch_, head_;
  QueryRows rows_;
  RowPair beta_;
};

}  // namespace hedgerow::kernels::cuda
