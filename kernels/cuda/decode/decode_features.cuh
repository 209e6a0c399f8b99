// phi of single tokens in fp32, by one warp and without a barrier: what a decode step and a prefill
// read of a map. Half a warp takes half of the rows of W, a lane four columns a pass; then each
// half has z and activates one sign of it. Formulas: kernels/maps.
#pragma once

#include "kernels/cuda/decode/decode_arguments.hpp"
#include "kernels/cuda/tile/feature_tiles.cuh"
#include "kernels/cuda/tile/vectors.cuh"

namespace hedgerow::kernels::cuda {

inline constexpr int kHalfWarp = 16;
inline constexpr int kColumnsOfPass = 4 * kHalfWarp;

// z [kVectors][kPasses][4] of x (shared memory, rows of kHeadDim): this lane's columns, those of
// pass p being 64 p + 4 (lane % 16) ... . The sum over kHeadDim is one order whatever kVectors is.
template <int kHeadDim, int kVectors, int kPasses>
HEDGEROW_TILE void project_tokens(float (&z)[kVectors][kPasses][4],
                                  const DecodeMap& map,
                                  int head,
                                  const float* x,
                                  int lane_of_half,
                                  int half) {
  const float* layer =
      map.layer + static_cast<std::int64_t>(head) * kHeadDim * map.columns + 4 * lane_of_half;
  constexpr int kRowsOfTurn = kVectors == 1 ? 4 : kPasses <= 2 ? 2 : 1;  // of W, in flight together
  HEDGEROW_NO_UNROLL
  for (int d = half * (kHeadDim / 2); d < (half + 1) * (kHeadDim / 2); d += kRowsOfTurn) {
    Four w[kRowsOfTurn][kPasses];
    HEDGEROW_UNROLL
    for (int i = 0; i < kRowsOfTurn; ++i) {
      HEDGEROW_UNROLL
      for (int p = 0; p < kPasses; ++p) {
        const bool inside = p * kColumnsOfPass + 4 * lane_of_half < map.columns;
        w[i][p] = inside ? load_four(layer + (d + i) * map.columns + p * kColumnsOfPass) : Four{};
      }
    }
    HEDGEROW_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      HEDGEROW_UNROLL
      for (int i = 0; i < kRowsOfTurn; ++i) {
        const float value = x[v * kHeadDim + d + i];
        HEDGEROW_UNROLL
        for (int p = 0; p < kPasses; ++p) {
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            z[v][p][c] += value * w[i][p].values[c];
          }
        }
      }
    }
  }
  HEDGEROW_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    HEDGEROW_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        z[v][p][c] += shuffle_xor(z[v][p][c], kHalfWarp);
      }
    }
  }
}

// One sign of one token's z, into phi (shared memory). Every lane of the warp comes here; those of
// a half whose sign the map does not have store nothing.
template <int kPasses>
HEDGEROW_TILE void activate_token(
    float* phi, const float (&z)[kPasses][4], const DecodeMap& map, int lane_of_half, int half) {
  const float sign = map.negation && half == 1 ? -1.0F : 1.0F;
  const auto inside = [&](int p) { return p * kColumnsOfPass + 4 * lane_of_half < map.columns; };
  const bool is_of_row = maps::is_of_row(map.function.kind);
  float largest = minus_infinity(), sum = 0.0F;
  if (is_of_row) {
    HEDGEROW_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        const float x = sign * z[p][c];
        largest = inside(p) && x > largest ? x : largest;
      }
    }
    HEDGEROW_UNROLL
    for (int mask = 1; mask < kHalfWarp; mask *= 2) {
      const float other = shuffle_xor(largest, mask);
      largest = other > largest ? other : largest;
    }
  }
  float y[kPasses][4];
  HEDGEROW_UNROLL
  for (int p = 0; p < kPasses; ++p) {
    HEDGEROW_UNROLL
    for (int c = 0; c < 4; ++c) {
      const float x = sign * z[p][c];
      if (is_of_row) {
        y[p][c] = exponential(x - largest);
        sum += inside(p) ? y[p][c] : 0.0F;
      } else {
        y[p][c] = activate_one(map.function, x);
      }
    }
  }
  const bool divides = is_of_row && is_normalised(map.function);
  const float factor = divides ? 1.0F / sum_of_lanes(sum, kHalfWarp) : 1.0F;
  if (half == 1 && !map.negation) {
    return;
  }
  HEDGEROW_UNROLL
  for (int p = 0; p < kPasses; ++p) {
    if (inside(p)) {
      Four out;
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        out.values[c] = is_of_row ? clamped(y[p][c] * factor) : y[p][c];
      }
      store_four(phi + half * map.columns + p * kColumnsOfPass + 4 * lane_of_half, out);
    }
  }
}

// phi of kVectors tokens under the map of one query head: x [kVectors][kHeadDim] and phi, rows of
// `stride`, in shared memory; map.columns <= 64 kPasses. A warp.
template <int kHeadDim, int kVectors, int kPasses>
HEDGEROW_TILE void make_token_features(
    float* phi, int stride, const DecodeMap& map, int head, const float* x) {
  const int lane_of_warp = lane();
  const int lane_of_half = lane_of_warp % kHalfWarp, half = lane_of_warp / kHalfWarp;
  float z[kVectors][kPasses][4];
  HEDGEROW_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    HEDGEROW_UNROLL
    for (int p = 0; p < kPasses; ++p) {
      const int column = p * kColumnsOfPass + 4 * lane_of_half;
      const bool copied = map.layer == nullptr && column < map.columns;
      const Four row = copied ? load_four(x + v * kHeadDim + column) : Four{};
      HEDGEROW_UNROLL
      for (int c = 0; c < 4; ++c) {
        z[v][p][c] = row.values[c];
      }
    }
  }
  if (map.layer != nullptr) {
    project_tokens<kHeadDim>(z, map, head, x, lane_of_half, half);
  }
  HEDGEROW_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    if (map.bias != nullptr) {
      HEDGEROW_UNROLL
      for (int p = 0; p < kPasses; ++p) {
        const int column = p * kColumnsOfPass + 4 * lane_of_half;
        if (column < map.columns) {
          const Four bias = load_four(map.bias + head * map.columns + column);
          HEDGEROW_UNROLL
          for (int c = 0; c < 4; ++c) {
            z[v][p][c] += bias.values[c];
          }
        }
      }
    }
    activate_token(phi + v * stride, z[v], map, lane_of_half, half);
  }
}

}  // namespace hedgerow::kernels::cuda
