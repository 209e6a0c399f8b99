// The states of the linear branch: S = sum of phi(x) v^T and z = sum of phi(x) w over whole tiles
// of 64 tokens, for one side of the hybrid. Forward: keys with their values, a prefix sum.
// Backward: queries with dn = dy / Z, a suffix sum (the dS that the keys' gradients read). LoLCATs
// eq. 3.
//
// Grid (segments, D / 64, B U or B H), 128 threads. A threadblock walks the tiles of its segment
// with 64 columns of S in registers (fp32) and writes S as it stands at every tile (bf16: what a
// product reads; the sum itself is never rounded). Where that is too small for the card, a first
// launch (kTotals) makes each segment's sum and the second one starts from the sums of the segments
// before, in ascending order: the bytes depend on the number of segments, never on timing.
//
// Shared memory: W [D, f], two stages of x [64, D] and v [64, 64], phi [64, F], sums of four warps.
// Per tile and head 2 D f (x its columns / 64) + 2 F D FLOPs a token; reads 4 D, writes 2 F D / 64
// bytes a token.
#pragma once

#include "kernels/cuda/tile/feature_tiles.cuh"

namespace hedgerow::kernels::cuda {

template <typename S>
class StatesWalk {
 public:
  static constexpr int kThreads = 128;
  static constexpr int kColumns = 64;  // of D, a threadblock

  struct alignas(128) Shared {
    Bf16 layer[S::kHeadDim * S::kProjected];
    Bf16 x[2][kTile * S::kHeadDim];
    Bf16 values[2][kTile * kColumns];
    Bf16 phi[kTile * S::kFeatures];
    float sums[4][S::kFeatures];
  };

  HEDGEROW_TILE StatesWalk(
      const StatesArguments& arguments, Shared& shared, int segment, int half, int row)
      : a_(arguments),
        shared_(shared),
        segment_(segment),
        half_(half),
        batch_(row / a_.heads),
        head_(row % a_.heads) {
    const int tiles = a_.inputs.tiles();
    const int per_segment = (tiles + a_.segments - 1) / a_.segments;
    begin_ = segment * per_segment;
    end_ = begin_ + per_segment < tiles ? begin_ + per_segment : tiles;
  }

  template <bool kTotals>
  HEDGEROW_TILE void run() {
    HEDGEROW_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      state_[m].clear();
    }
    sum_ = 0.0F;
    if (begin_ >= end_) {
      if constexpr (kTotals) {
        store_totals();
      }
      return;
    }
    if (a_.map.layer != nullptr) {
      const GlobalRows layer{
          a_.map.layer + static_cast<std::int64_t>(head_) * S::kHeadDim * S::kProjected,
          S::kProjected};
      copy_rows<S::kHeadDim, S::kProjected, kThreads>(
          Tile<S::kProjected>{shared_.layer}, layer, S::kHeadDim);
    }
    if constexpr (!kTotals) {
      load_totals();
    }
    start_copy(0);
    HEDGEROW_NO_UNROLL
    for (int step = 0; step < end_ - begin_; ++step) {
      const bool more = step + 1 < end_ - begin_;
      if (more) {
        start_copy(step + 1);
        wait_for_copies<1>();
      } else {
        wait_for_copies<0>();
      }
      sync_threads();
      if (!kTotals && a_.prefix) {
        store_state(tile_of(step));
      }
      make_features(step, !kTotals);
      sync_threads();
      add_tile(step);
      if (!kTotals && !a_.prefix) {
        store_state(tile_of(step));
      }
      sync_threads();
    }
    if constexpr (kTotals) {
      store_totals();
    }
  }

 private:
  // Each warp owns kFeatures / 4 rows of S.
  static constexpr int kRowsOfWarp = S::kFeatures / 4;
  static constexpr int kBlocks = kRowsOfWarp / kWarpRows;

  HEDGEROW_TILE int tile_of(int step) const { return a_.prefix ? begin_ + step : end_ - 1 - step; }
  HEDGEROW_TILE int valid_rows(int tile) const {
    const int left = a_.inputs.T - tile * kTile;
    return left < kTile ? left : kTile;
  }

  HEDGEROW_TILE GlobalRows rows_of(const Rows& x, int tile, int column) const {
    const int head = head_ / (a_.heads / a_.x_heads);
    return {x.data + batch_ * x.batch + head * x.head +
                static_cast<std::int64_t>(tile) * kTile * x.token + column,
            x.token};
  }

  HEDGEROW_TILE void start_copy(int step) {
    const int tile = tile_of(step), valid = valid_rows(tile);
    copy_rows<kTile, S::kHeadDim, kThreads>(
        Tile<S::kHeadDim>{shared_.x[step % 2]}, rows_of(a_.x, tile, 0), valid);
    copy_rows<kTile, kColumns, kThreads>(Tile<kColumns>{shared_.values[step % 2]},
                                         rows_of(a_.values, tile, half_ * kColumns),
                                         valid);
    commit_copies();
  }

  // phi of the tile into shared memory, zero of skipped tokens and beyond the last one; and its
  // sums by column.
  HEDGEROW_TILE void make_features(int step, bool keep) {
    const int tile = tile_of(step), row = warp() * kWarpRows;
    Sums<S::kProjected> z, phi;
    project<S>(z,
               a_.map,
               head_,
               Tile<S::kHeadDim>{shared_.x[step % 2]},
               row,
               Tile<S::kProjected>{shared_.layer});
    RowPair inside, weights;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int token = tile * kTile + row + row_of(2 * r);
      inside.values[r] = token >= a_.skipped && token < a_.inputs.T ? 1.0F : 0.0F;
      weights.values[r] = 1.0F;
      if (a_.weights != nullptr) {
        weights.values[r] =
            token < a_.inputs.T ? a_.weights[row_index() * a_.inputs.T + token] : 0.0F;
      }
    }
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      const MapFunction function = a_.map.function;
      activate(phi, z, function, sign_of(s), row_statistics(z, function, sign_of(s)));
      HEDGEROW_UNROLL
      for (int n = 0; n < phi.kGroups; ++n) {
        HEDGEROW_UNROLL
        for (int i = 0; i < 4; ++i) {
          phi.values[n][i] = inside.values[i / 2] != 0.0F ? phi.values[n][i] : 0.0F;
        }
      }
      store_sums(Tile<S::kFeatures>{shared_.phi}, phi, row, s * S::kProjected);
      if (half_ == 0) {
        round_to_bf16(phi);
        add_column_sums(phi, weights, shared_.sums[warp()] + s * S::kProjected);
      }
    }
    if (keep && half_ == 0 && a_.features != nullptr) {
      sync_warp();
      store_features(tile, row);
    }
  }

  HEDGEROW_TILE void store_features(int tile, int row) {
    constexpr int kUnits = S::kFeatures / kUnit;
    const Tile<S::kFeatures> phi{shared_.phi};
    Bf16* out = a_.features + (row_index() * a_.inputs.tiles() + tile) * kTile * S::kFeatures;
    for (int i = lane(); i < kWarpRows * kUnits; i += 32) {
      const int r = row + i / kUnits, unit = i % kUnits;
      copy_unit(out + r * S::kFeatures + unit * kUnit, phi.unit(r, unit));
    }
  }

  // S += phi^T v; z += the four warps' sums.
  HEDGEROW_TILE void add_tile(int step) {
    const Tile<kColumns> values{shared_.values[step % 2]};
    HEDGEROW_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      HEDGEROW_UNROLL
      for (int k = 0; k < kTile / 16; ++k) {
        Word left[4];
        load_left_transposed(
            left, Tile<S::kFeatures>{shared_.phi}, warp() * kRowsOfWarp + m * kWarpRows, k);
        multiply_step(state_[m], left, values, 16 * k, 0);
      }
    }
    if (half_ == 0) {
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        const float sum =
            (shared_.sums[0][f] + shared_.sums[1][f]) + (shared_.sums[2][f] + shared_.sums[3][f]);
        if (f < kThreads) {
          sum_ += sum;
        } else {
          more_sum_ += sum;
        }
      }
    }
  }

  HEDGEROW_TILE std::int64_t row_index() const {
    return static_cast<std::int64_t>(batch_) * a_.heads + head_;
  }

  template <typename Visit>
  HEDGEROW_TILE void for_pairs(const Visit& visit) {
    HEDGEROW_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      HEDGEROW_UNROLL
      for (int n = 0; n < kColumns / 8; ++n) {
        HEDGEROW_UNROLL
        for (int half = 0; half < 2; ++half) {
          float* pair = &state_[m].values[n][2 * half];
          visit(warp() * kRowsOfWarp + m * kWarpRows + row_of(2 * half),
                half_ * kColumns + column_of(n, 0),
                pair);
        }
      }
    }
  }

  HEDGEROW_TILE void store_state(int tile) {
    // The state before the first tile is zero and never read.
    if (tile == 0 && a_.prefix) {
      return;
    }
    const std::int64_t index = row_index() * a_.inputs.tiles() + tile;
    Bf16* state = a_.out.states + index * S::kFeatures * S::kHeadDim;
    for_pairs([&](int f, int d, const float* pair) {
      *reinterpret_cast<Word*>(state + f * S::kHeadDim + d) = pack(pair[0], pair[1]);
    });
    if (half_ == 0) {
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        a_.out.sums[index * S::kFeatures + f] = f < kThreads ? sum_ : more_sum_;
      }
    }
  }

  static constexpr int kTotalSize = S::kFeatures * (S::kHeadDim + 1);
  HEDGEROW_TILE float* totals_of(int segment) const {
    return a_.totals + (row_index() * a_.segments + segment) * kTotalSize;
  }
  HEDGEROW_TILE void store_totals() {
    float* totals = totals_of(segment_);
    for_pairs([&](int f, int d, const float* pair) {
      totals[f * S::kHeadDim + d] = pair[0];
      totals[f * S::kHeadDim + d + 1] = pair[1];
    });
    if (half_ == 0) {
      for (int f = thread(); f < S::kFeatures; f += kThreads) {
        totals[S::kFeatures * S::kHeadDim + f] = f < kThreads ? sum_ : more_sum_;
      }
    }
  }
  HEDGEROW_TILE void load_totals() {
    const int first = a_.prefix ? 0 : segment_ + 1, last = a_.prefix ? segment_ : a_.segments;
    HEDGEROW_NO_UNROLL
    for (int segment = first; segment < last; ++segment) {
      const float* totals = totals_of(segment);
      for_pairs([&](int f, int d, float* pair) {
        pair[0] += totals[f * S::kHeadDim + d];
        pair[1] += totals[f * S::kHeadDim + d + 1];
      });
      if (half_ == 0) {
        for (int f = thread(); f < S::kFeatures; f += kThreads) {
          (f < kThreads ? sum_ : more_sum_) += totals[S::kFeatures * S::kHeadDim + f];
        }
      }
    }
  }

  const StatesArguments& a_;
  Shared& shared_;
  int segment_, half_, batch_, head_, begin_, end_;
  Sums<kColumns> state_[kBlocks];
  float sum_ = 0.0F, more_sum_ = 0.0F;  // of features thread() and thread() + 128
};

}  // namespace hedgerow::kernels::cuda
