// y, Z and the linear mass of the hybrid (hybrid_attention.hpp), a tile of 64 queries a
// threadblock: every tile of every head is independent once hybrid_states.cuh has run, so that one
// sequence with few heads fills a card.
//
// Grid (tiles, B H), 128 threads, 16 queries a warp. In order: the window's tiles by running
// softmax (QK^T, PV); z = Q W and phi_q; near linear pairs (sliding: the tile behind); y += phi_q
// S. Output sums, maxima and exponentials are fp32; p, l, phi and S are bf16 as left and right
// factors.
//
// Shared memory: Q, then two stages of K and V that W, phi_k with V, and S take over in turn.
// Per query 4 D (keys of its tiles + F) + 2 D f FLOPs; reads q, k, v and S once: 6 D + 2 F D / 64
// bytes a token of a head, writes 2 D + 8.
#pragma once

#include "kernels/cuda/pair_tiles.cuh"

namespace hedgerow::kernels::cuda {

template <typename S>
class ForwardTile {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kRowsSize = kTile * S::kHeadDim;
  static constexpr int kLayerSize = S::kHeadDim * S::kProjected;
  static constexpr int kFeaturesSize = kTile * S::kFeatures;
  static constexpr int kStateSize = S::kFeatures * S::kHeadDim;
  static constexpr int larger(int a, int b) { return a > b ? a : b; }

  struct alignas(128) Shared {
    Bf16 q[kRowsSize];  // y on the way out
    union {
      Bf16 pool[4 * kRowsSize];
      struct {
        // W; then phi_k and V of a near tile; then S.
        Bf16 linear[larger(kLayerSize, larger(kFeaturesSize + kRowsSize, kStateSize))];
        float window[kRowsSize];  // sum p v of the window, each thread's own
      };
    };
    float state_sum[S::kFeatures];
  };

  HEDGEROW_TILE ForwardTile(const ForwardArguments& arguments, Shared& shared, int tile, int row)
      : a_(arguments),
        in_(arguments.inputs),
        shared_(shared),
        tile_(tile),
        batch_(row / in_.H),
        head_(row % in_.H),
        far_(in_.far_tiles(tile)),
        rows_(QueryRows::of(in_, tile, first_row())) {}

  HEDGEROW_TILE void run() {
    copy_rows<kTile, S::kHeadDim, kThreads>(
        Tile<S::kHeadDim>{shared_.q}, rows_of(in_.q, head_, tile_), valid_rows(tile_));
    commit_copies();
    y_.clear();
    if (in_.layout != Layout::kNone) {
      walk_window();
    }
    const bool linear = far_ > 0 || in_.near_linear_end(tile_) > far_;
    if (linear) {
      put_window_aside();
      make_features();
      walk_near();
      add_state();
    }
    linear_ = row_sums_of_quad(linear_);
    store(linear);
  }

 private:
  HEDGEROW_TILE int first_row() const { return warp() * kWarpRows; }
  HEDGEROW_TILE int valid_rows(int tile) const {
    const int left = in_.T - tile * kTile;
    return left < kTile ? left : kTile;
  }
  HEDGEROW_TILE GlobalRows rows_of(const Rows& x, int head, int tile) const {
    return {x.data + batch_ * x.batch + head * x.head +
                static_cast<std::int64_t>(tile) * kTile * x.token,
            x.token};
  }
  HEDGEROW_TILE int kv_head() const { return head_ / (in_.H / in_.G); }
  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * in_.H + head_;
  }
  HEDGEROW_TILE Bf16* pool(int rows_offset) const { return shared_.pool + rows_offset * kRowsSize; }

  HEDGEROW_TILE void copy_keys(int stage, int tile) {
    copy_rows<kTile, S::kHeadDim, kThreads>(
        Tile<S::kHeadDim>{pool(2 * stage)}, rows_of(in_.k, kv_head(), tile), valid_rows(tile));
    if (a_.has_values) {
      copy_rows<kTile, S::kHeadDim, kThreads>(Tile<S::kHeadDim>{pool(2 * stage + 1)},
                                              rows_of(in_.v, kv_head(), tile),
                                              valid_rows(tile));
    }
    commit_copies();
  }

  // p = g e^(s - m) of the window, with values.
  HEDGEROW_TILE void walk_window() {
    RunningSoftmax softmax;
    const float scale = kLog2E / sqrtf(static_cast<float>(S::kHeadDim));
    copy_keys(0, far_);
    HEDGEROW_NO_UNROLL
    for (int t = far_; t <= tile_; ++t) {
      const int stage = (t - far_) % 2;
      if (t < tile_) {
        copy_keys(1 - stage, t + 1);
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      sync_threads();
      Sums<kTile> scores;
      window_scores(scores,
                    Tile<S::kHeadDim>{shared_.q},
                    first_row(),
                    Tile<S::kHeadDim>{pool(2 * stage)},
                    rows_,
                    0,
                    t * kTile,
                    scale);
      scale_rows(y_, softmax.take(scores));
      const Left<kTile> weights = as_left(scores);
      add_row_sums(softmax.sums, weights);
      if (a_.has_values) {
        multiply(y_, weights, Tile<S::kHeadDim>{pool(2 * stage + 1)});
      }
      sync_threads();
    }
    softmax.finish();
    const float gate = in_.gate[head_];
    scale_rows(y_, RowPair{{gate, gate}});
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      window_.values[r] = gate * softmax.sums.values[r];
      if (a_.maxima != nullptr && stores_row(r)) {
        a_.maxima[token_index(r)] = softmax.maxima.values[r];
        a_.ties[token_index(r)] = softmax.ties.values[r];
      }
    }
  }

  HEDGEROW_TILE float& window_value(int n, int i) {
    return shared_.window[(4 * n + i) * kThreads + thread()];
  }

  // What follows sums into y_ from zero: the two branches' shares are wanted apart in the end.
  HEDGEROW_TILE void put_window_aside() {
    if (in_.layout == Layout::kNone || !a_.has_values) {
      return;
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        window_value(n, i) = y_.values[n][i];
        y_.values[n][i] = 0.0F;
      }
    }
  }

  // phi_q, as a left factor, and its dot with z.
  HEDGEROW_TILE void make_features() {
    const Tile<S::kProjected> layer{shared_.linear};
    if (in_.map_q.layer != nullptr) {
      const GlobalRows rows{in_.map_q.layer + static_cast<std::int64_t>(head_) * kLayerSize,
                            S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(layer, rows, S::kHeadDim);
    }
    commit_copies();
    if (far_ > 0) {
      const float* sums = a_.far.sums + (row_index() * in_.tiles() + far_) * S::kFeatures;
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        shared_.state_sum[f] = sums[f];
      }
    }
    wait_for_copies<0>();
    sync_threads();
    Sums<S::kProjected> z, phi;
    project<S>(z, in_.map_q, head_, Tile<S::kHeadDim>{shared_.q}, first_row(), layer);
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      const MapKind kind = in_.map_q.kind;
      activate(phi, z, kind, sign_of(s), row_statistics(z, kind, sign_of(s)));
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
    const Tile<S::kHeadDim> values{shared_.linear + kFeaturesSize};
    HEDGEROW_NO_UNROLL
    for (int t = far_; t < in_.near_linear_end(tile_) && t <= tile_; ++t) {
      const std::int64_t index = row_index() * in_.tiles() + t;
      copy_rows<kTile, S::kFeatures, kThreads>(
          features, {a_.features_k + index * kFeaturesSize, S::kFeatures}, kTile);
      if (a_.has_values) {
        copy_rows<kTile, S::kHeadDim, kThreads>(
            values, rows_of(in_.v, kv_head(), t), valid_rows(t));
      }
      commit_copies();
      wait_for_copies<0>();
      sync_threads();
      Sums<kTile> products;
      products.clear();
      multiply_transposed(products, phi_, features);
      keep_linear(products, rows_, t * kTile);
      const Left<kTile> weights = as_left(products);
      add_row_sums(linear_, weights);
      if (a_.has_values) {
        multiply(y_, weights, values);
      }
      sync_threads();
    }
  }

  HEDGEROW_TILE void add_state() {
    if (far_ == 0 || !a_.has_values) {
      return;
    }
    const Tile<S::kHeadDim> state{shared_.linear};
    const Bf16* from = a_.far.states + (row_index() * in_.tiles() + far_) * kStateSize;
    copy_rows<S::kFeatures, S::kHeadDim, kThreads>(state, {from, S::kHeadDim}, S::kFeatures);
    commit_copies();
    wait_for_copies<0>();
    sync_threads();
    multiply(y_, phi_, state);
  }

  HEDGEROW_TILE bool stores_row(int r) const { return rows_.query[r] < in_.T && lane() % 4 == 0; }
  HEDGEROW_TILE std::int64_t token_index(int r) const {
    return row_index() * in_.T + rows_.query[r];
  }

  HEDGEROW_TILE void store(bool linear) {
    RowPair inverse;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const float epsilon = in_.layout == Layout::kNone ? 1e-12F : 0.0F;  // kLinearEpsilon
      const float denominator = window_.values[r] + linear_.values[r] + epsilon;
      inverse.values[r] = 1.0F / denominator;
      if (stores_row(r)) {
        a_.denominator[token_index(r)] = denominator;
        a_.linear_mass[token_index(r)] = linear_.values[r];
      }
    }
    if (!a_.has_values) {
      return;
    }
    const bool both = linear && in_.layout != Layout::kNone;
    if (a_.pull != nullptr) {
      store_pull(both, inverse);
    }
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float sum = y_.values[n][i] + (both ? window_value(n, i) : 0.0F);
        y_.values[n][i] = sum * inverse.values[i / 2];
      }
    }
    if (a_.y_is_float) {
      store_exact(static_cast<float*>(a_.y));
    } else {
      store_rounded(
          y_, static_cast<Bf16*>(a_.y) + batch_ * a_.y_batch + head_ * a_.y_head, a_.y_token);
      if (a_.rest != nullptr) {
        store_rest();
      }
    }
  }

  HEDGEROW_TILE void store_rest() {
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; i += 2) {
        const Word pair = pack(y_.values[n][i], y_.values[n][i + 1]);
        y_.values[n][i] -= unpack(static_cast<Bf16>(pair));
        y_.values[n][i + 1] -= unpack(static_cast<Bf16>(pair >> 16));
      }
    }
    store_rounded(y_, a_.rest + row_index() * in_.T * S::kHeadDim, S::kHeadDim);
  }

  // sum_window p (v - y) = (l N_window - p N_linear) / Z with p, l and N the branches' sums: exact
  // where either branch is small, and 0 where there is one branch alone.
  HEDGEROW_TILE void store_pull(bool both, RowPair inverse) {
    Sums<S::kHeadDim> pull;
    HEDGEROW_UNROLL
    for (int n = 0; n < pull.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int r = i / 2;
        const float difference =
            both ? linear_.values[r] * window_value(n, i) - window_.values[r] * y_.values[n][i]
                 : 0.0F;
        pull.values[n][i] = difference * inverse.values[r];
      }
    }
    store_rounded(pull, a_.pull + row_index() * in_.T * S::kHeadDim, S::kHeadDim);
  }

  HEDGEROW_TILE std::int64_t y_offset(int query) const {
    return batch_ * a_.y_batch + head_ * a_.y_head + query * a_.y_token;
  }
  HEDGEROW_TILE void store_exact(float* out) {
    HEDGEROW_UNROLL
    for (int n = 0; n < y_.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (rows_.query[i / 2] < in_.T) {
          out[y_offset(rows_.query[i / 2]) + column_of(n, i)] = y_.values[n][i];
        }
      }
    }
  }
  // Through the warp's own rows of Q, so that 16 bytes at a time go out.
  HEDGEROW_TILE void store_rounded(const Sums<S::kHeadDim>& sums, Bf16* out, std::int64_t stride) {
    constexpr int kUnits = S::kHeadDim / kUnit;
    const Tile<S::kHeadDim> staged{shared_.q};
    sync_warp();
    store_sums(staged, sums, first_row());
    sync_warp();
    for (int i = lane(); i < kWarpRows * kUnits; i += 32) {
      const int row = first_row() + i / kUnits, unit = i % kUnits, query = tile_ * kTile + row;
      if (query < in_.T) {
        copy_unit(out + query * stride + unit * kUnit, staged.unit(row, unit));
      }
    }
  }

  const ForwardArguments& a_;
  const HybridInputs& in_;
  Shared& shared_;
  int tile_, batch_, head_, far_;
  QueryRows rows_;
  Sums<S::kHeadDim> y_;
  Left<S::kFeatures> phi_;
  RowPair window_{{0.0F, 0.0F}}, linear_{{0.0F, 0.0F}};  // sums of p; of l, this lane's columns
};

}  // namespace hedgerow::kernels::cuda
