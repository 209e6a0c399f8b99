// One side's map gradient of the weights' cross-entropy (terms: cross_entropy_arguments.hpp), a
// tile of 64 tokens of the side at a time against all tiles of the other that hold linear pairs
// with it:
//
//   dphi_q = sum_j dl phi_k      dphi_k = sum_i dl phi_q      then dz, the partial dW and db
//
// dl goes through shared memory as [queries, keys], bf16, to be read straight or transposed.
//
// The keys' side meets the query heads that share its map in ascending order.
//
// Grid (parts, B H or B U), 256 threads (map_backward.cuh says how they share a tile; of a tile of
// pairs a warp holds 16 queries and half of the keys). Per token (D + 2 F) T + 4 D f FLOPs.
#pragma once

#include "kernels/cuda/hybrid/map_backward.cuh"
#include "kernels/cuda/tile/softmax_forward.cuh"
#include "kernels/cuda/transfer/cross_entropy_launch.hpp"

namespace hedgerow::kernels::cuda {

template <typename S, Side kSide>
class CrossEntropyBackward {
 public:
  static constexpr int kThreads = kBackwardThreads;
  static constexpr int kKeys = kTile / 2;  // of a warp, in a tile of pairs
  static constexpr int kRowsSize = kTile * S::kHeadDim;
  static constexpr int kLayerSize = S::kHeadDim * S::kProjected;
  static constexpr int kFeaturesSize = kTile * S::kFeatures;

  struct alignas(128) Shared {
    Bf16 q[kRowsSize], k[kRowsSize];
    Bf16 phi_q[kFeaturesSize], phi_k[kFeaturesSize];
    Bf16 layer[kLayerSize];
    Bf16 pairs[kTile * kTile];
    typename MapBackward<S>::Shared map;
  };

  HEDGEROW_TILE CrossEntropyBackward(const CrossEntropyBackwardArguments& arguments,
                                     Shared& shared,
                                     int part,
                                     int row)
      : a_(arguments),
        in_(arguments.inputs),
        shared_(shared),
        map_(shared.map),
        part_(part),
        batch_(row / heads()),
        own_head_(row % heads()) {}

  HEDGEROW_TILE void run() {
    if (map().layer != nullptr) {
      const GlobalRows rows{map().layer + static_cast<std::int64_t>(own_head_) * kLayerSize,
                            S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(layer(), rows, S::kHeadDim);
    }
    map_.clear_part();
    const int first = part_ * a_.tiles_per_part;
    HEDGEROW_NO_UNROLL
    for (int tile = first; tile < first + a_.tiles_per_part && tile < in_.tiles(); ++tile) {
      walk_tile(tile);
    }
    const std::int64_t index =
        (static_cast<std::int64_t>(part_) * in_.B + batch_) * heads() + own_head_;
    map_.store_part(a_.layer != nullptr ? a_.layer + index * kLayerSize : nullptr,
                    a_.bias != nullptr ? a_.bias + index * S::kProjected : nullptr);
  }

 private:
  HEDGEROW_TILE const Map& map() const { return kSide == Side::kQueries ? in_.map_q : in_.map_k; }
  // Heads of the side's map.
  HEDGEROW_TILE int heads() const { return kSide == Side::kQueries ? in_.H : in_.U; }
  HEDGEROW_TILE int key_head() const { return head_ / in_.key_group(); }
  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.H + head_;
  }
  HEDGEROW_TILE std::int64_t key_row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.U + key_head();
  }
  HEDGEROW_TILE int valid_rows(int tile) const {
    const int left = in_.T - tile * kTile;
    return left < kTile ? left : kTile;
  }
  HEDGEROW_TILE Tile<S::kHeadDim> queries() const { return {shared_.q}; }
  HEDGEROW_TILE Tile<S::kHeadDim> keys() const { return {shared_.k}; }
  HEDGEROW_TILE Tile<S::kFeatures> features_q() const { return {shared_.phi_q}; }
  HEDGEROW_TILE Tile<S::kFeatures> features_k() const { return {shared_.phi_k}; }
  HEDGEROW_TILE Tile<S::kProjected> layer() const { return {shared_.layer}; }
  HEDGEROW_TILE Tile<kTile> pairs() const { return {shared_.pairs}; }

  HEDGEROW_TILE void copy_queries(int tile) {
    copy_rows<kTile, S::kHeadDim, kThreads>(
        queries(), rows_from(in_.q, batch_, head_, tile * kTile), valid_rows(tile));
    copy_features(features_q(), a_.features_q, row_index(), tile);
  }
  HEDGEROW_TILE void copy_keys(int tile) {
    copy_rows<kTile, S::kHeadDim, kThreads>(
        keys(), rows_from(in_.k, batch_, head_ / in_.group(), tile * kTile), valid_rows(tile));
    copy_features(features_k(), a_.features_k, key_row_index(), tile);
  }
  HEDGEROW_TILE void copy_features(Tile<S::kFeatures> to,
                                   const Bf16* from,
                                   std::int64_t row,
                                   int tile) {
    const std::int64_t index = row * in_.tiles() + tile;
    copy_rows<kTile, S::kFeatures, kThreads>(
        to, {from + index * kFeaturesSize, S::kFeatures}, kTile);
  }

  // Whether a tile of queries has linear pairs with a tile of keys.
  HEDGEROW_TILE bool is_linear(int queries_tile, int keys_tile) const {
    return keys_tile <= queries_tile && keys_tile < in_.near_linear_end(queries_tile);
  }

  HEDGEROW_TILE void walk_tile(int tile) {
    const bool of_queries = kSide == Side::kQueries;
    const int group = of_queries ? 1 : in_.key_group();
    bool any = false;
    map_.clear_tile();
    head_ = own_head_ * group;
    if (of_queries) {
      copy_queries(tile);
    } else {
      copy_keys(tile);
    }
    HEDGEROW_NO_UNROLL
    for (; head_ < (own_head_ + 1) * group; ++head_) {
      any = meet_others(tile) || any;
    }
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
    if (any) {
      const Tile<S::kHeadDim> x = of_queries ? queries() : keys();
      map_.run(map(), own_head_, x, layer(), {0, valid_rows(tile)}, a_.bias != nullptr, nullptr);
      map_.add_gradients(x, a_.layer != nullptr, a_.bias != nullptr);
      sync_threads();
    }
  }

  // dphi += the pairs with all tiles of the other side under head_; whether there are any.
  HEDGEROW_TILE bool meet_others(int tile) {
    const bool of_queries = kSide == Side::kQueries;
    const int first = of_queries ? 0 : tile, last = of_queries ? tile + 1 : in_.tiles();
    bool any = false;
    HEDGEROW_NO_UNROLL
    for (int other = first; other < last; ++other) {
      const int queries_tile = of_queries ? tile : other, keys_tile = of_queries ? other : tile;
      if (is_linear(queries_tile, keys_tile)) {
        any = true;
        if (of_queries) {
          copy_keys(other);
        } else {
          copy_queries(other);
        }
        commit_copies();
        wait_for_copies<0>();
        sync_threads();
        make_pairs(queries_tile, keys_tile);
        sync_threads();
        add_pairs();
        sync_threads();
      }
    }
    return any;
  }

  // dl of this warp's 16 queries and its half of the keys.
  HEDGEROW_TILE void make_pairs(int queries_tile, int keys_tile) {
    const QueryRows rows = QueryRows::of(in_, queries_tile, group_row());
    const QueryRows causal = QueryRows::causal(queries_tile, group_row());
    const int column = half() * kKeys, first_key = keys_tile * kTile + column;
    const float scale = kLog2E / sqrtf(static_cast<float>(S::kHeadDim));
    Sums<kKeys> scores, products;
    window_scores(scores, queries(), group_row(), keys(), causal, column, first_key, scale);
    products.clear();
    multiply_transposed(products, features_q(), group_row(), features_k(), column);
    RowPair normaliser, share, floor;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      normaliser.values[r] = of_row(a_.rows.normaliser, rows, r);
      share.values[r] = of_row(a_.rows.share, rows, r);
      floor.values[r] = of_row(a_.rows.floor, rows, r);
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < products.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2;
        const float l = products.values[n][i];
        const float teacher = power_of_two(scores.values[n][i] - normaliser.values[r]);
        const float gradient = share.values[r] - (l < floor.values[r] ? 0.0F : teacher / l);
        const bool inside = rows.is_linear(r, first_key + column_of(n, i)) && rows.query[r] < in_.T;
        products.values[n][i] = inside ? gradient : 0.0F;
      }
    }
    store_sums(pairs(), products, group_row(), column);
  }

  HEDGEROW_TILE float of_row(const float* x, const QueryRows& rows, int r) const {
    return rows.query[r] < in_.T ? x[row_index() * in_.T + rows.query[r]] : 0.0F;
  }

  HEDGEROW_TILE void add_pairs() {
    HEDGEROW_UNROLL_TWICE
    for (int k = 0; k < kTile / 16; ++k) {
      Word left[4];
      if constexpr (kSide == Side::kQueries) {
        load_left(left, pairs(), group_row(), k);
        map_.add_pairs(left, features_k(), 16 * k);
      } else {
        load_left_transposed(left, pairs(), group_row(), k);
        map_.add_pairs(left, features_q(), 16 * k);
      }
    }
  }

  const CrossEntropyBackwardArguments& a_;
  const HybridInputs& in_;
  Shared& shared_;
  MapBackward<S> map_;
  int part_, batch_, own_head_;  // of the side's map
  int head_ = 0;                 // of the queries
};

}  // namespace hedgerow::kernels::cuda
