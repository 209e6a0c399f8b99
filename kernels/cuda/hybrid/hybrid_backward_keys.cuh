// The keys' side of the hybrid's backward (derivation: hybrid_backward_walker.hpp), a tile of 64
// keys at a time. With R, r the sums of phi_q dn and phi_q beta over the queries, of all query
// heads that share the key head, from the first tile that sees these keys through the state:
//
//   dphi_k = v R^T + r + sum over near pairs of dl phi_q        dz, the partial dW_k and db_k
//   dv = phi_k R + sum over the tile's pairs of (p + l) dn
//   dk = dz W^T + sum over the window's pairs of ds q
//
// What later tiles of queries send to the sinks of a far tile comes summed from the queries' side.
//
// Scores lie [queries, keys] as in the forward, so that they are the same bits; P, dS and dL go
// through shared memory to be read transposed.
//
// 256 threads (map_backward.cuh says how they share a tile; of a tile of pairs a warp holds 16
// queries and half of the keys, of dk and dv 16 keys and half of D). The query heads that share a
// key head are met in ascending order; z, phi_k and dz are its own, once. Without kInputs
// (attention transfer): grid (parts, B U), dW_k in registers over the tiles of a part, no score.
// With kInputs: grid (tiles, B G); a threadblock walks the key heads of its kv head in ascending
// order with dk and dv in registers, so K and V are never expanded.
//
// kCompact (Forms, shapes.cuh): the same sums in the same order from less shared memory. W and
// phi_k take the places of what is dead by then, and the features of near pairs come 32 columns at
// a time. That costs two barriers for each 32 columns, and W is copied after the state, not with
// it.
#pragma once

#include "kernels/cuda/hybrid/map_backward.cuh"

namespace hedgerow::kernels::cuda {

template <typename S, bool kInputs, bool kCompact>
class BackwardKeys {
 public:
  static constexpr int kThreads = kBackwardThreads;
  static constexpr int kHalfDim = S::kHeadDim / 2;
  static constexpr int kKeys = kTile / 2;  // of a warp, in a tile of pairs
  static constexpr int kRowsSize = kTile * S::kHeadDim;
  static constexpr int kLayerSize = S::kHeadDim * S::kProjected;
  static constexpr int kFeaturesSize = kTile * S::kFeatures;
  static constexpr int kStateSize = S::kFeatures * S::kHeadDim;
  static constexpr int larger(int a, int b) { return a > b ? a : b; }

  static constexpr int kChunk = 32;  // features of a near pair of tiles at a time, compact
  static constexpr int kPairsSize = kTile * kTile;
  static constexpr bool kLayerInValues = kLayerSize <= kRowsSize;  // compact

  // R, W and (kInputs) phi_k; or Q, dn, phi_q and phi_k of a pair of tiles.
  static constexpr int kLargePool = larger(kStateSize + kLayerSize + (kInputs ? kFeaturesSize : 0),
                                           2 * kRowsSize + 2 * kFeaturesSize);
  // R, and W if it does not fit the place of V; or dn with Q or phi_q.
  static constexpr int kCompactPool = larger(kStateSize + (kLayerInValues ? 0 : kLayerSize),
                                             kRowsSize + larger(kRowsSize, kFeaturesSize));

  struct alignas(128) Shared {
    Bf16 k[kRowsSize];  // dk, dv on the way out
    Bf16 v[kRowsSize];  // compact: then W
    Bf16 pool[kCompact ? kCompactPool : kLargePool];
    // dS or dL; P. Compact: a chunk of phi_q and of phi_k where P comes to lie; both, then phi_k.
    Bf16 pairs[kInputs ? 2 : 1][kPairsSize];
    typename MapBackward<S>::Shared map;
  };

  HEDGEROW_TILE BackwardKeys(const BackwardArguments& arguments, Shared& shared, int part, int row)
      : a_(arguments), in_(arguments.inputs), shared_(shared), map_(shared.map), part_(part) {
    const int heads = kInputs ? in_.G : in_.U, of_row = in_.U / heads;
    batch_ = row / heads;
    key_head_ = row % heads * of_row;
    last_key_head_ = key_head_ + of_row;
  }

  HEDGEROW_TILE void run() {
    const int first = kInputs ? part_ : part_ * a_.tiles_per_part;
    const int last = kInputs ? part_ + 1 : first + a_.tiles_per_part;
    dk_.clear();
    dv_.clear();
    HEDGEROW_NO_UNROLL
    for (; key_head_ < last_key_head_; ++key_head_) {
      if constexpr (!kInputs) {
        map_.clear_part();
      }
      HEDGEROW_NO_UNROLL
      for (tile_ = first; tile_ < last && tile_ < in_.tiles(); ++tile_) {
        walk_tile();
      }
      const std::int64_t index = static_cast<std::int64_t>(part_) * in_.B * in_.U + key_row_index();
      map_.store_part(a_.layer_k != nullptr ? a_.layer_k + index * kLayerSize : nullptr,
                      a_.bias_k != nullptr ? a_.bias_k + index * S::kProjected : nullptr);
    }
    if constexpr (kInputs) {
      tile_ = part_;
      store_inputs(dk_, a_.sink_k_sum, a_.dk);
      store_inputs(dv_, a_.sink_v_sum, a_.dv);
    }
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
  HEDGEROW_TILE int kv_head() const { return key_head_ / (in_.U / in_.G); }
  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.H + head_;
  }
  HEDGEROW_TILE std::int64_t key_row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.U + key_head_;
  }
  // The query heads of the key head.
  HEDGEROW_TILE int first_head() const { return key_head_ * in_.key_group(); }
  HEDGEROW_TILE int last_head() const { return first_head() + in_.key_group(); }
  HEDGEROW_TILE float of_row(const float* x, const QueryRows& rows, int r) const {
    return rows.query[r] < in_.T ? x[row_index() * in_.T + rows.query[r]] : 0.0F;
  }

  HEDGEROW_TILE Tile<S::kHeadDim> keys() const { return {shared_.k}; }
  HEDGEROW_TILE Tile<S::kHeadDim> values() const { return {shared_.v}; }
  HEDGEROW_TILE Tile<S::kHeadDim> state() const { return {shared_.pool}; }
  HEDGEROW_TILE Tile<S::kProjected> layer() const {
    return {kCompact && kLayerInValues ? shared_.v : shared_.pool + kStateSize};
  }
  HEDGEROW_TILE Tile<S::kFeatures> phi() const {
    if constexpr (kCompact) {
      static_assert(!kInputs || kFeaturesSize <= 2 * kPairsSize);
      return {shared_.pairs[0]};
    } else {
      return {shared_.pool + kStateSize + kLayerSize};
    }
  }
  HEDGEROW_TILE Tile<S::kHeadDim> queries() const {
    return {shared_.pool + (kCompact ? kRowsSize : 0)};
  }
  HEDGEROW_TILE Tile<S::kHeadDim> dn() const { return {shared_.pool + (kCompact ? 0 : kRowsSize)}; }
  HEDGEROW_TILE Tile<S::kFeatures> features_q() const {
    return {shared_.pool + (kCompact ? kRowsSize : 2 * kRowsSize)};
  }
  HEDGEROW_TILE Tile<S::kFeatures> features_k() const {  // not compact
    return {shared_.pool + 2 * kRowsSize + kFeaturesSize};
  }
  enum Pairs { kScores, kWeights };
  HEDGEROW_TILE Tile<kTile> pairs(Pairs which) const { return {shared_.pairs[which]}; }

  HEDGEROW_TILE void walk_tile() {
    const int far = in_.first_far_query_tile(tile_);
    const bool has_far = far < in_.tiles();
    copy_rows<kTile, S::kHeadDim, kThreads>(
        keys(), rows_of(in_.k, kv_head(), tile_), valid_rows(tile_));
    copy_rows<kTile, S::kHeadDim, kThreads>(
        values(), rows_of(in_.v, kv_head(), tile_), valid_rows(tile_));
    commit_copies();
    // Pairs before dphi and dW exist: together they would not fit the registers.
    bool linear = has_far;
    HEDGEROW_NO_UNROLL
    for (int c = tile_; c < far && c < in_.tiles(); ++c) {
      linear = linear || is_near(c);
    }
    if constexpr (kInputs) {
      each_pair(far, [&](int c) { walk_pairs(c, is_near(c)); });
    }
    if (kInputs && !linear) {
      map_.clear_part();
    }
    if (linear) {
      map_.clear_tile();
      each_pair(far, [&](int c) {
        if (is_near(c)) {
          take_near(c);
        }
      });
      finish_linear(far, has_far);
    }
    wait_for_copies<0>();
    sync_threads();
  }

  // visit(c) of the tiles of queries tile_ .. end - 1, for each query head of the key head. One
  // loop: what depends on the head alone would be kept in registers over a loop of its own.
  template <typename Visit>
  HEDGEROW_TILE void each_pair(int end, const Visit& visit) {
    const int last = end < in_.tiles() ? end : in_.tiles();
    const int tiles = last - tile_;
    HEDGEROW_NO_UNROLL
    for (int i = 0; i < tiles * in_.key_group(); ++i) {
      head_ = first_head() + i / tiles;
      visit(tile_ + i % tiles);
    }
  }

  // Whether a tile of queries has linear pairs with these keys, one by one.
  HEDGEROW_TILE bool is_near(int c) const { return in_.near_linear_end(c) > tile_; }

  HEDGEROW_TILE void copy_query_tile(int c, bool with_queries, bool with_features) {
    sync_threads();
    const std::int64_t first = row_index() * in_.tiles(), own = key_row_index() * in_.tiles();
    if (with_queries) {
      copy_rows<kTile, S::kHeadDim, kThreads>(queries(), rows_of(in_.q, head_, c), valid_rows(c));
    }
    copy_rows<kTile, S::kHeadDim, kThreads>(dn(), rows_of(a_.dn, head_, c), valid_rows(c));
    if (with_features && !(kCompact && with_queries)) {
      copy_rows<kTile, S::kFeatures, kThreads>(
          features_q(), {a_.features_q + (first + c) * kFeaturesSize, S::kFeatures}, kTile);
      if (with_queries) {
        copy_rows<kTile, S::kFeatures, kThreads>(
            features_k(), {a_.features_k + (own + tile_) * kFeaturesSize, S::kFeatures}, kTile);
      }
    }
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
  }

  // dk and dv of the pairs of these keys with one tile of queries.
  HEDGEROW_TILE void walk_pairs(int c, bool near) {
    copy_query_tile(c, true, near);
    make_pairs(c, near);
    sync_threads();
    add_transposed(dv_, kWeights, dn());
    if (in_.layout != Layout::kNone) {
      add_transposed(dk_, kScores, queries());
    }
  }

  // dphi += dL^T phi_q of the linear pairs with one tile of queries.
  HEDGEROW_TILE void take_near(int c) {
    copy_query_tile(c, false, true);
    const QueryRows rows = QueryRows::of(in_, c, group_row());
    const int column = half() * kKeys;
    Sums<kKeys> da;
    pair_gradients(da, rows, column);
    keep_linear(da, rows, tile_ * kTile + column);
    store_sums(pairs(kScores), da, group_row(), column);
    sync_threads();
    HEDGEROW_UNROLL_TWICE
    for (int k = 0; k < kTile / 16; ++k) {
      Word left[4];
      load_left_transposed(left, pairs(kScores), group_row(), k);
      map_.add_pairs(left, features_q(), 16 * k);
    }
  }

  HEDGEROW_TILE void pair_gradients(Sums<kKeys>& da, const QueryRows& rows, int column) {
    da.clear();
    multiply_transposed(da, dn(), group_row(), values(), column);
    const RowPair beta{{of_row(a_.beta, rows, 0), of_row(a_.beta, rows, 1)}};
    HEDGEROW_UNROLL
    for (int n = 0; n < da.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        da.values[n][i] += beta.values[i / 2];
      }
    }
  }

  // sums [16 keys, half of D] += pairs^T x.
  HEDGEROW_TILE void add_transposed(Sums<kHalfDim>& sums, Pairs which, Tile<S::kHeadDim> x) {
    HEDGEROW_UNROLL_TWICE
    for (int k = 0; k < kTile / 16; ++k) {
      Word left[4];
      load_left_transposed(left, pairs(which), group_row(), k);
      multiply_step(sums, left, x, 16 * k, half() * kHalfDim);
    }
  }

  // dS and P = p + l of this warp's 16 queries and its half of the keys.
  HEDGEROW_TILE void make_pairs(int c, bool near) {
    const QueryRows rows = QueryRows::of(in_, c, group_row());
    const int column = half() * kKeys, first_key = tile_ * kTile + column;
    Sums<kKeys> weights;
    weights.clear();
    if (in_.layout != Layout::kNone) {
      window_pairs(weights, rows, column, first_key);
    }
    if (near) {
      Sums<kKeys> linear;
      linear.clear();
      if constexpr (kCompact) {
        add_products_in_chunks(linear, c, column);
      } else {
        multiply_transposed(linear, features_q(), group_row(), features_k(), column);
      }
      keep_linear(linear, rows, first_key);
      HEDGEROW_UNROLL
      for (int n = 0; n < weights.kGroups; ++n) {
        HEDGEROW_UNROLL
        for (int i = 0; i < 4; ++i) {
          weights.values[n][i] += linear.values[n][i];
        }
      }
    }
    store_sums(pairs(kWeights), weights, group_row(), column);
  }

  // products += phi_q phi_k^T, the inner dimension in the order of one multiply_transposed. Ends
  // with a barrier: the weights come to lie where the chunks are.
  HEDGEROW_TILE void add_products_in_chunks(Sums<kKeys>& products, int c, int column) {
    static_assert(2 * kTile * kChunk <= kPairsSize && S::kFeatures % kChunk == 0);
    const Tile<kChunk> phi_q{shared_.pairs[kWeights]}, phi_k{phi_q.data + kTile * kChunk};
    const Bf16* from_q = a_.features_q + (row_index() * in_.tiles() + c) * kFeaturesSize;
    const Bf16* from_k = a_.features_k + (key_row_index() * in_.tiles() + tile_) * kFeaturesSize;
    HEDGEROW_NO_UNROLL
    for (int first = 0; first < S::kFeatures; first += kChunk) {
      copy_rows<kTile, kChunk, kThreads>(phi_q, {from_q + first, S::kFeatures}, kTile);
      copy_rows<kTile, kChunk, kThreads>(phi_k, {from_k + first, S::kFeatures}, kTile);
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      multiply_transposed(products, phi_q, group_row(), phi_k, column);
      sync_threads();
    }
  }

  // weights = p; stores dS.
  HEDGEROW_TILE void window_pairs(Sums<kKeys>& weights,
                                  const QueryRows& rows,
                                  int column,
                                  int first_key) {
    const float root = sqrtf(static_cast<float>(S::kHeadDim));
    Sums<kKeys> da;
    pair_gradients(da, rows, column);
    window_scores(weights, queries(), group_row(), keys(), rows, column, first_key, kLog2E / root);
    RowPair maxima, shares;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const bool inside = rows.query[r] < in_.T;
      maxima.values[r] = of_row(a_.maxima, rows, r);
      shares.values[r] = inside ? of_row(a_.totals, rows, r) / of_row(a_.ties, rows, r) : 0.0F;
    }
    score_gradients(da, weights, maxima, shares, rows.gates(in_, head_), 1.0F / root);
    store_sums(pairs(kScores), da, group_row(), column);
  }

  HEDGEROW_TILE void copy_layer() {
    if (in_.map_k.layer != nullptr) {
      const GlobalRows rows{in_.map_k.layer + static_cast<std::int64_t>(key_head_) * kLayerSize,
                            S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(layer(), rows, S::kHeadDim);
    }
  }

  // dphi += v R^T + r; z and phi_k once more; dz, dW_k, db_k; dv += phi_k R; dk += dz W^T.
  HEDGEROW_TILE void finish_linear(int far, bool has_far) {
    sync_threads();
    if constexpr (!kCompact) {
      copy_layer();
    }
    if (has_far) {
      const std::int64_t index = key_row_index() * in_.tiles() + far;
      copy_rows<S::kFeatures, S::kHeadDim, kThreads>(
          state(), {a_.far_gradient.states + index * kStateSize, S::kHeadDim}, S::kFeatures);
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        map_.state_sums()[f] = a_.far_gradient.sums[index * S::kFeatures + f];
      }
    }
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
    if (has_far) {
      map_.add_state(values(), state(), map_.state_sums(), RowPair{{1.0F, 1.0F}});
    }
    if constexpr (kCompact) {
      sync_threads();  // W comes to lie where the values are
      copy_layer();
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
    }
    const Tile<S::kFeatures> features = phi();
    map_.run(in_.map_k,
             key_head_,
             keys(),
             layer(),
             {in_.sinks - tile_ * kTile, valid_rows(tile_)},
             a_.bias_k != nullptr,
             kInputs && has_far ? &features : nullptr);
    if constexpr (kInputs) {
      map_.clear_part();  // one tile a part: not before it is needed
    }
    map_.add_gradients(keys(), a_.layer_k != nullptr, a_.bias_k != nullptr);
    if constexpr (kInputs) {
      map_.add_input_gradient(dk_, in_.map_k, layer());
      if (has_far) {
        HEDGEROW_UNROLL_TWICE
        for (int k = 0; k < S::kFeatures / 16; ++k) {
          Word left[4];
          load_left(left, features, group_row(), k);
          multiply_step(dv_, left, state(), 16 * k, half() * kHalfDim);
        }
      }
    }
  }

  HEDGEROW_TILE void add_sinks(Sums<kHalfDim>& sums, const float* from, std::int64_t row) {
    HEDGEROW_UNROLL
    for (int n = 0; n < sums.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int key = tile_ * kTile + group_row() + row_of(i);
        if (key < in_.sinks) {
          sums.values[n][i] +=
              from[(row * in_.sinks + key) * S::kHeadDim + half() * kHalfDim + column_of(n, i)];
        }
      }
    }
  }

  // One of dk and dv, through the tile of keys, which is no longer needed.
  HEDGEROW_TILE void store_inputs(Sums<kHalfDim>& sums, const float* of_sinks, Bf16* out) {
    if (out == nullptr) {
      return;
    }
    constexpr int kUnits = S::kHeadDim / kUnit;
    const std::int64_t row =
        static_cast<std::int64_t>(batch_) * in_.G + (last_key_head_ - 1) / (in_.U / in_.G);
    if (of_sinks != nullptr && tile_ < in_.sink_tiles()) {
      add_sinks(sums, of_sinks, row);
    }
    sync_threads();
    store_sums(keys(), sums, group_row(), half() * kHalfDim);
    sync_threads();
    for (int i = thread(); i < kTile * kUnits; i += kThreads) {
      const int key = tile_ * kTile + i / kUnits, unit = i % kUnits;
      if (key < in_.T) {
        copy_unit(out + (row * in_.T + key) * S::kHeadDim + unit * kUnit,
                  keys().unit(i / kUnits, unit));
      }
    }
  }

  const BackwardArguments& a_;
  const HybridInputs& in_;
  Shared& shared_;
  MapBackward<S> map_;
  int part_, batch_, key_head_ = 0, last_key_head_ = 0, head_ = 0, tile_ = 0;
  Sums<kHalfDim> dk_, dv_;
};

}  // namespace hedgerow::kernels::cuda
