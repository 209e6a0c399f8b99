// Feature maps on the 16 rows of a warp: z = x W + b by tensor cores, phi and its backward in fp32
// registers. A map with negation is two activations of one z, of either sign; callers walk the
// signs one after the other, so that only one is in registers. Formulas: kernels/maps.
#pragma once

#include "kernels/cuda/tile/hybrid_arguments.hpp"
#include "kernels/cuda/tile/tiles.cuh"
#include "kernels/maps/maps.hpp"

namespace hedgerow::kernels::cuda {

inline constexpr float kClamp = 1e-12F;  // kFeatureClamp

// What a kernel is compiled for.
template <int kHeadDim_, int kProjected_, bool kNegation_>
struct Shape {
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kProjected = kProjected_;
  static constexpr int kSigns = kNegation_ ? 2 : 1;
  static constexpr int kFeatures = kSigns * kProjected;
};

HEDGEROW_TILE float sign_of(int index) { return index == 0 ? 1.0F : -1.0F; }
HEDGEROW_TILE float clamped(float x) { return x < kClamp ? kClamp : x; }
HEDGEROW_TILE float exponential(float x) { return power_of_two(x * kLog2E); }

// z of rows row .. row + 15 of tile x, columns first .. of the map.
template <typename S, int kColumns>
HEDGEROW_TILE void project(Sums<kColumns>& z,
                           const Map& map,
                           int head,
                           Tile<S::kHeadDim> x,
                           int row,
                           Tile<S::kProjected> layer,
                           int first = 0) {
  if (map.layer != nullptr) {
    z.clear();
    multiply(z, x, row, layer, first);
  } else if constexpr (S::kProjected == S::kHeadDim) {
    HEDGEROW_UNROLL
    for (int n = 0; n < z.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        z.values[n][i] = unpack(x.at(row + row_of(i), first + column_of(n, i)));
      }
    }
  }
  if (map.bias != nullptr) {
    HEDGEROW_UNROLL
    for (int n = 0; n < z.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        z.values[n][i] += map.bias[head * S::kProjected + first + column_of(n, i)];
      }
    }
  }
}

// phi(x) of an elementwise map.
HEDGEROW_TILE float activate_one(MapFunction function, float x) {
  const auto clamped_phi = [&](auto map) {
    const float phi =
        map.activate(x, function.temperature, [](float power) { return exponential(power); });
    return map.kClamped ? clamped(phi) : phi;
  };
  return maps::visit(clamped_phi, function.kind, maps::Elementwise{});
}

// Whether the exponentials of a map of rows are divided by their sum.
HEDGEROW_TILE bool is_normalised(MapFunction function) {
  return maps::visit([](auto map) { return map.kNormalised; }, function.kind, maps::OfRows{});
}

// What a map of rows needs of a whole row of sign z: its maximum and the sum of e^(sign z -
// maximum).
struct RowStatistics {
  RowPair maxima{{0.0F, 0.0F}}, sums{{1.0F, 1.0F}};
};

template <int kColumns>
HEDGEROW_TILE RowStatistics row_statistics(const Sums<kColumns>& z,
                                           MapFunction function,
                                           float sign) {
  RowStatistics rows;
  if (!maps::is_of_row(function.kind)) {
    return rows;
  }
  rows.maxima = {{minus_infinity(), minus_infinity()}};
  HEDGEROW_UNROLL
  for (int n = 0; n < z.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float x = sign * z.values[n][i];
      rows.maxima.values[i / 2] = x > rows.maxima.values[i / 2] ? x : rows.maxima.values[i / 2];
    }
  }
  rows.maxima = row_maxima_of_quad(rows.maxima);
  if (is_normalised(function)) {
    rows.sums = {{0.0F, 0.0F}};
    HEDGEROW_UNROLL
    for (int n = 0; n < z.kGroups; ++n) {
      HEDGEROW_UNROLL
      for (int i = 0; i < 4; ++i) {
        rows.sums.values[i / 2] += exponential(sign * z.values[n][i] - rows.maxima.values[i / 2]);
      }
    }
    rows.sums = row_sums_of_quad(rows.sums);
  }
  return rows;
}

// phi of one sign, of all columns or some.
template <int kColumns>
HEDGEROW_TILE void activate(Sums<kColumns>& phi,
                            const Sums<kColumns>& z,
                            MapFunction function,
                            float sign,
                            RowStatistics rows) {
  const RowPair factors{{1.0F / rows.sums.values[0], 1.0F / rows.sums.values[1]}};
  HEDGEROW_UNROLL
  for (int n = 0; n < z.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float x = sign * z.values[n][i];
      phi.values[n][i] =
          maps::is_of_row(function.kind)
              ? clamped(exponential(x - rows.maxima.values[i / 2]) * factors.values[i / 2])
              : activate_one(function, x);
    }
  }
}

// What the backward of a map of rows needs of a whole row: the dot of phi with what reaches it, and
// how many features are 1 (the maximum, where it is not divided by the sum).
struct RowDots {
  RowPair dots{{0.0F, 0.0F}}, ties{{0.0F, 0.0F}};
};

// Adds this lane's columns.
template <int kColumns>
HEDGEROW_TILE void add_row_dots(RowDots& rows,
                                const Sums<kColumns>& phi,
                                const Sums<kColumns>& dphi) {
  HEDGEROW_UNROLL
  for (int n = 0; n < phi.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float p = phi.values[n][i];
      rows.dots.values[i / 2] += p > kClamp ? p * dphi.values[n][i] : 0.0F;
      rows.ties.values[i / 2] += p == 1.0F ? 1.0F : 0.0F;
    }
  }
}

// The gradient of x in phi(x) = p, dphi reaching p; nothing below the clamp. dot, ties: of the
// whole row, for maps of rows.
HEDGEROW_TILE float gradient_of_one(
    MapFunction function, float p, float dphi, float dot, float ties) {
  const float direct = p > kClamp ? dphi : 0.0F;
  const auto of_row = [&](auto map) {
    return map.gradient(p, direct, dot, map.kShares ? dot / ties : 0.0F);
  };
  const auto elementwise = [&](auto map) {
    return map.derivative(p, function.temperature) * (map.kClamped ? direct : dphi);
  };
  return maps::is_of_row(function.kind)
             ? maps::visit(of_row, function.kind, maps::OfRows{})
             : maps::visit(elementwise, function.kind, maps::Elementwise{});
}

// dz += the gradient through one sign, from phi and dphi.
template <int kColumns>
HEDGEROW_TILE void activate_backward(Sums<kColumns>& dz,
                                     const Sums<kColumns>& phi,
                                     const Sums<kColumns>& dphi,
                                     MapFunction function,
                                     float sign,
                                     RowDots rows) {
  HEDGEROW_UNROLL
  for (int n = 0; n < phi.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      dz.values[n][i] += sign * gradient_of_one(function,
                                                phi.values[n][i],
                                                dphi.values[n][i],
                                                rows.dots.values[i / 2],
                                                rows.ties.values[i / 2]);
    }
  }
}

// One sign's features as columns sign_index * kProjected .. of a left factor.
template <typename S>
HEDGEROW_TILE void place(Left<S::kFeatures>& left, const Sums<S::kProjected>& phi, int sign_index) {
  const Left<S::kProjected> part = as_left(phi);
  constexpr int kSteps = S::kProjected / 16;
  HEDGEROW_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      left.words[sign_index * kSteps + step][i] = part.words[step][i];
    }
  }
}

// Rounds phi as a product reads it: what is divided by a sum of features must be summed from the
// same numbers.
template <int kColumns>
HEDGEROW_TILE void round_to_bf16(Sums<kColumns>& phi) {
  HEDGEROW_UNROLL
  for (int n = 0; n < phi.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Word pair = pack(phi.values[n][2 * half], phi.values[n][2 * half + 1]);
      phi.values[n][2 * half] = unpack(static_cast<Bf16>(pair));
      phi.values[n][2 * half + 1] = unpack(static_cast<Bf16>(pair >> 16));
    }
  }
}

// rows += phi . weights over one sign's columns.
template <int kColumns>
HEDGEROW_TILE void add_weighted_sums(RowPair& rows,
                                     const Sums<kColumns>& phi,
                                     const float* weights) {
  HEDGEROW_UNROLL
  for (int n = 0; n < phi.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int i = 0; i < 4; ++i) {
      rows.values[i / 2] += phi.values[n][i] * weights[column_of(n, i)];
    }
  }
}

// Columns summed over the warp's 16 rows, in lanes 0 to 3: column c of group n in lane c % 8 / 2.
template <int kColumns>
HEDGEROW_TILE void add_column_sums(const Sums<kColumns>& x, RowPair weights, float* out) {
  HEDGEROW_UNROLL
  for (int n = 0; n < x.kGroups; ++n) {
    HEDGEROW_UNROLL
    for (int side = 0; side < 2; ++side) {
      float sum = x.values[n][side] * weights.values[0] + x.values[n][2 + side] * weights.values[1];
      HEDGEROW_UNROLL
      for (int mask = 4; mask < 32; mask *= 2) {
        sum += shuffle_xor(sum, mask);
      }
      if (lane() < 4) {
        out[column_of(n, side)] = sum;
      }
    }
  }
}

}  // namespace hedgerow::kernels::cuda
