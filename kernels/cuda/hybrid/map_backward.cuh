// The backward through one side's feature map, as both backward kernels share it: from dphi of a
// tile of 64 tokens to dz, the partial dW = x^T dz and db, which stay in registers over the tiles
// of a part.
//
// 256 threads: warp w holds rows 16 (w % 4) .. of the tile and half w / 4 of the map's columns, for
// both signs; what a row's softmax needs of the other half goes through shared memory. So no lane
// holds more than 2 x 32 values of dphi at 128 features.
#pragma once

#include "kernels/cuda/hybrid/hybrid_backward_arguments.hpp"
#include "kernels/cuda/tile/pair_tiles.cuh"

namespace hedgerow::kernels::cuda {

inline constexpr int kBackwardThreads = 256;

// Where a warp of the backward kernels works.
HEDGEROW_TILE int row_group() { return warp() % 4; }
HEDGEROW_TILE int half() { return warp() / 4; }
HEDGEROW_TILE int group_row() { return row_group() * kWarpRows; }

// Rows of a tile that have features: of keys neither sinks nor rows beyond the last token.
struct RowRange {
  int begin, end;
  HEDGEROW_TILE bool holds(int row) const { return row >= begin && row < end; }
};

template <typename S>
class MapBackward {
 public:
  static constexpr int kOwn = S::kProjected / 2;  // columns of a warp
  static constexpr int kBlocks = S::kHeadDim / (4 * kWarpRows);
  static constexpr int kLayerSize = S::kHeadDim * S::kProjected;

  struct Shared {
    Bf16 dz[kTile * S::kProjected];
    float exchange[2][4][kTile];  // a half's share of what rows sum up
    float sums[4][S::kProjected];
  };
  // [F] for the caller, until run(): `sums` is written behind run()'s first barrier, and read last
  // by add_gradients().
  HEDGEROW_TILE float* state_sums() const {
    static_assert(S::kFeatures <= 4 * S::kProjected);
    return shared_.sums[0];
  }

  HEDGEROW_TILE explicit MapBackward(Shared& shared) : shared_(shared) {}

  HEDGEROW_TILE Tile<S::kProjected> dz() const { return {shared_.dz}; }
  HEDGEROW_TILE int first_column() const { return half() * kOwn; }

  HEDGEROW_TILE void clear_part() {
    HEDGEROW_UNROLL
    for (int m = 0; m < kBlocks; ++m) {
      layer_[m].clear();
    }
    bias_ = 0.0F;
  }
  HEDGEROW_TILE void clear_tile() {
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      dphi_[s].clear();
    }
  }

  // dphi += rows state^T + weights_i sums_f.
  HEDGEROW_TILE void add_state(Tile<S::kHeadDim> rows,
                               Tile<S::kHeadDim> state,
                               const float* sums,
                               RowPair weights) {
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      const int first = s * S::kProjected + first_column();
      multiply_transposed(dphi_[s], rows, group_row(), state, first);
      HEDGEROW_UNROLL
      for (int n = 0; n < dphi_[s].kGroups; ++n) {
        HEDGEROW_UNROLL
        for (int i = 0; i < 4; ++i) {
          dphi_[s].values[n][i] += weights.values[i / 2] * sums[first + column_of(n, i)];
        }
      }
    }
  }

  // dphi += left features, one step of 16 of the inner dimension.
  HEDGEROW_TILE void add_pairs(const Word (&left)[4], Tile<S::kFeatures> features, int first_row) {
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      multiply_step(dphi_[s], left, features, first_row, s * S::kProjected + first_column());
    }
  }

  // From dphi to the tile's dz, 0 outside `inside`. phi, if given, receives the features as well,
  // likewise. All threads; ends behind a barrier.
  HEDGEROW_TILE void run(const Map& map,
                         int head,
                         Tile<S::kHeadDim> x,
                         Tile<S::kProjected> layer,
                         RowRange inside,
                         bool wants_bias,
                         const Tile<S::kFeatures>* phi_out) {
    RowStatistics statistics[S::kSigns];
    const Sums<kOwn> z = make_z(map, head, x, layer, statistics);
    Sums<kOwn> phi, dz_sums;
    RowDots rows[S::kSigns];
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      activate(phi, z, map.function, sign_of(s), statistics[s]);
      add_row_dots(rows[s], phi, dphi_[s]);
      if (phi_out != nullptr) {
        keep_rows(phi, inside);
        store_sums(*phi_out, phi, group_row(), s * S::kProjected + first_column());
      }
    }
    exchange_sums(rows);
    dz_sums.clear();
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      // Again, rather than held for both signs through the barrier.
      activate(phi, z, map.function, sign_of(s), statistics[s]);
      activate_backward(dz_sums, phi, dphi_[s], map.function, sign_of(s), rows[s]);
    }
    keep_rows(dz_sums, inside);
    store_sums(dz(), dz_sums, group_row(), first_column());
    if (wants_bias) {
      add_column_sums(dz_sums, RowPair{{1.0F, 1.0F}}, shared_.sums[row_group()] + first_column());
    }
    sync_threads();
  }

  // dW += x^T dz, db += the columns' sums of dz.
  HEDGEROW_TILE void add_gradients(Tile<S::kHeadDim> x, bool wants_layer, bool wants_bias) {
    if (wants_layer) {
      HEDGEROW_UNROLL
      for (int m = 0; m < kBlocks; ++m) {
        HEDGEROW_UNROLL_TWICE
        for (int k = 0; k < kTile / 16; ++k) {
          Word left[4];
          load_left_transposed(left, x, (4 * m + row_group()) * kWarpRows, k);
          multiply_step(layer_[m], left, dz(), 16 * k, first_column());
        }
      }
    }
    if (wants_bias && thread() < S::kProjected) {
      const int f = thread();
      bias_ +=
          (shared_.sums[0][f] + shared_.sums[1][f]) + (shared_.sums[2][f] + shared_.sums[3][f]);
    }
  }

  // sums [16 rows, D / 2 columns of this half] += dz W^T.
  HEDGEROW_TILE void add_input_gradient(Sums<S::kHeadDim / 2>& sums,
                                        const Map& map,
                                        Tile<S::kProjected> layer) {
    const int first = half() * S::kHeadDim / 2;
    if (map.layer != nullptr) {
      multiply_transposed(sums, dz(), group_row(), layer, first);
    } else if constexpr (S::kProjected == S::kHeadDim) {
      HEDGEROW_UNROLL
      for (int n = 0; n < sums.kGroups; ++n) {
        HEDGEROW_UNROLL
        for (int i = 0; i < 4; ++i) {
          sums.values[n][i] += unpack(dz().at(group_row() + row_of(i), first + column_of(n, i)));
        }
      }
    }
  }

  // Partial dW [D, f] and db [f] of a part; null: not wanted.
  HEDGEROW_TILE void store_part(float* layer, float* bias) const {
    if (layer != nullptr) {
      HEDGEROW_UNROLL
      for (int m = 0; m < kBlocks; ++m) {
        store_floats(layer + (4 * m + row_group()) * kWarpRows * S::kProjected + first_column(),
                     S::kProjected,
                     layer_[m]);
      }
    }
    if (bias != nullptr && thread() < S::kProjected) {
      bias[thread()] = bias_;
    }
  }

 private:
  // This half's columns of z, and what both signs need of whole rows: a half's maximum and sum, and
  // then those of both. Ends behind a barrier.
  HEDGEROW_TILE Sums<kOwn> make_z(const Map& map,
                                  int head,
                                  Tile<S::kHeadDim> x,
                                  Tile<S::kProjected> layer,
                                  RowStatistics (&statistics)[S::kSigns]) {
    Sums<kOwn> z;
    project<S>(z, map, head, x, group_row(), layer, first_column());
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      statistics[s] = row_statistics(z, map.function, sign_of(s));
      put(2 * s, statistics[s].maxima);
      put(2 * s + 1, statistics[s].sums);
    }
    sync_threads();
    if (maps::is_of_row(map.function.kind)) {
      HEDGEROW_UNROLL
      for (int s = 0; s < S::kSigns; ++s) {
        statistics[s] = combined(2 * s, map.function);
      }
    }
    sync_threads();
    return z;
  }

  HEDGEROW_TILE RowStatistics combined(int value, MapFunction function) const {
    RowStatistics rows;
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = group_row() + row_of(2 * r);
      const float first = shared_.exchange[0][value][row], second = shared_.exchange[1][value][row];
      const float maximum = second > first ? second : first;
      rows.maxima.values[r] = maximum;
      if (is_normalised(function)) {
        rows.sums.values[r] = shared_.exchange[0][value + 1][row] * exponential(first - maximum) +
                              shared_.exchange[1][value + 1][row] * exponential(second - maximum);
      }
    }
    return rows;
  }

  HEDGEROW_TILE static void keep_rows(Sums<kOwn>& sums, RowRange inside) {
    HEDGEROW_UNROLL
    for (int n = 0; n < sums.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        sums.values[n][i] = inside.holds(group_row() + row_of(i)) ? sums.values[n][i] : 0.0F;
      }
    }
  }

  // A half's share of a value of the lane's rows, for the other half to read behind a barrier.
  HEDGEROW_TILE void put(int value, RowPair rows) {
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      if (lane() % 4 == 0) {
        shared_.exchange[half()][value][group_row() + row_of(2 * r)] = rows.values[r];
      }
    }
  }

  // This lane's columns to whole rows: over the quad, then over both halves, in one order for both.
  HEDGEROW_TILE void exchange_sums(RowDots (&rows)[S::kSigns]) {
    HEDGEROW_UNROLL
    for (int s = 0; s < S::kSigns; ++s) {
      put(2 * s, row_sums_of_quad(rows[s].dots));
      put(2 * s + 1, row_sums_of_quad(rows[s].ties));
    }
    sync_threads();
    HEDGEROW_UNROLL
    for (int r = 0; r < 2; ++r) {
      const int row = group_row() + row_of(2 * r);
      const auto both = [&](int value) {
        return shared_.exchange[0][value][row] + shared_.exchange[1][value][row];
      };
      HEDGEROW_UNROLL
      for (int s = 0; s < S::kSigns; ++s) {
        rows[s].dots.values[r] = both(2 * s);
        rows[s].ties.values[r] = both(2 * s + 1);
      }
    }
  }

  Shared& shared_;
  Sums<kOwn> dphi_[S::kSigns], layer_[kBlocks];
  float bias_ = 0.0F;
};

}  // namespace hedgerow::kernels::cuda
