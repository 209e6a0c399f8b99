#include "kernels/cpu/attention_tiles.hpp"

#include <algorithm>
#include <limits>

#include "kernels/cpu/cpu_vector.hpp"
#include "kernels/maps/maps.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr auto kClamp = static_cast<float>(kFeatureClamp);
constexpr auto kWeight = static_cast<float>(kWeightClamp);

// The lanes of one row that a mask covers: [first, last).
struct LaneRange {
  std::int64_t first, last;
};

HEDGEROW_INLINE LaneRange covered(const TileMask& mask, std::int64_t key_row) {
  const std::int64_t lag_of_lane_0 = mask.first_query - (mask.first_key + key_row);
  const std::int64_t max_lag = key_row < mask.sink_rows ? kNoLag : mask.max_lag;
  return {mask.min_lag - lag_of_lane_0, max_lag - lag_of_lane_0};
}

HEDGEROW_INLINE Lanes select_lanes(LaneRange range,
                                   std::int64_t lane_0,
                                   Lanes inside,
                                   Lanes outside) {
  const std::int64_t low = std::clamp<std::int64_t>(range.first - lane_0, 0, kLanes);
  const std::int64_t high = std::clamp<std::int64_t>(range.last - lane_0, 0, kLanes);
  if (low == 0 && high == kLanes) {
    return inside;
  }
  const IntLanes index = lane_index();
  const IntLanes in =
      (index >= static_cast<std::int32_t>(low)) & (index < static_cast<std::int32_t>(high));
  return in != 0 ? inside : outside;
}

// One sign of a Hedgehog map: e^(sign z - offset), offset the largest of sign z; its sum is
// returned.
HEDGEROW_INLINE Lanes
exponentials(const float* z, std::int64_t ld, std::int64_t projected, float sign, float* phi) {
  Lanes offset = splat(kMinusInfinity);
  for (std::int64_t f = 0; f < projected; ++f) {
    offset = larger(load(z + f * ld) * sign, offset);
  }
  Lanes sum{};
  for (std::int64_t f = 0; f < projected; ++f) {
    const Lanes e = exp_lanes(load(z + f * ld) * sign - offset);
    store(phi + f * ld, e);
    sum += e;
  }
  return sum;
}

HEDGEROW_INLINE void clamp_and_scale(float* phi,
                                     std::int64_t ld,
                                     std::int64_t features,
                                     Lanes factor) {
  for (std::int64_t f = 0; f < features; ++f) {
    const Lanes x = load(phi + f * ld) * factor;
    store(phi + f * ld, x < kClamp ? splat(kClamp) : x);
  }
}

template <typename Map>
HEDGEROW_INLINE Lanes clamped(Lanes phi) {
  if constexpr (!Map::kClamped) return phi;
  return phi < kClamp ? splat(kClamp) : phi;
}

// One sign of a map of rows: dz = sign times the map's gradient of sign z, from phi and dphi; what
// reaches a feature is 0 where the clamp acts.
template <typename Map>
HEDGEROW_INLINE void row_backward(Map map,
                                  const float* phi,
                                  const float* dphi,
                                  std::int64_t ld,
                                  std::int64_t projected,
                                  float sign,
                                  bool add,
                                  float* dz) {
  Lanes dot{}, ties{};
  for (std::int64_t f = 0; f < projected; ++f) {
    const Lanes p = load(phi + f * ld);
    dot += p > kClamp ? p * load(dphi + f * ld) : Lanes{};
    if constexpr (Map::kShares) ties += p == 1.0F ? splat(1.0F) : Lanes{};
  }
  const Lanes share = Map::kShares ? dot / ties : Lanes{};
  for (std::int64_t f = 0; f < projected; ++f) {
    const Lanes p = load(phi + f * ld);
    const Lanes u = p > kClamp ? load(dphi + f * ld) : Lanes{};
    const Lanes gradient = map.gradient(p, u, dot, share) * sign;
    store(dz + f * ld, add ? load(dz + f * ld) + gradient : gradient);
  }
}

}  // namespace

HEDGEROW_CLONES void window_weights(float* scores,
                                    std::int64_t ld,
                                    std::int64_t keys,
                                    std::int64_t lanes,
                                    const TileMask& mask,
                                    float scale,
                                    const float* gates,
                                    float* weights,
                                    float* maxima,
                                    float* sums) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    Lanes maximum = splat(kMinusInfinity);
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes scaled = load(scores + j * ld + lane) * scale;
      const Lanes s = select_lanes(covered(mask, j), lane, scaled, splat(kMinusInfinity));
      store(scores + j * ld + lane, s);
      maximum = larger(s, maximum);
    }
    Lanes sum{};
    const Lanes gate = load(gates + lane);
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes p = gate * exp_lanes(load(scores + j * ld + lane) - maximum);
      store(weights + j * ld + lane, p);
      sum += p;
    }
    store(maxima + lane, maximum);
    store(sums + lane, sum);
  }
}

HEDGEROW_CLONES void mask_linear(float* x,
                                 std::int64_t ld,
                                 std::int64_t keys,
                                 std::int64_t lanes,
                                 const TileMask& mask,
                                 float* sums) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    Lanes sum = load(sums + lane);
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes kept = select_lanes(covered(mask, j), lane, load(x + j * ld + lane), Lanes{});
      store(x + j * ld + lane, kept);
      sum += kept;
    }
    store(sums + lane, sum);
  }
}

HEDGEROW_CLONES void add_tile(
    float* x, const float* y, std::int64_t ld, std::int64_t rows, std::int64_t lanes) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < lanes; c += kLanes) {
      store(x + r * ld + c, load(x + r * ld + c) + load(y + r * ld + c));
    }
  }
}

HEDGEROW_CLONES void window_gradient(const float* scores,
                                     const float* weights,
                                     std::int64_t ld,
                                     std::int64_t keys,
                                     std::int64_t lanes,
                                     const float* maxima,
                                     const float* totals,
                                     float scale,
                                     float* da) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    const Lanes maximum = load(maxima + lane);
    Lanes ties{};
    for (std::int64_t j = 0; j < keys; ++j) {
      ties += load(scores + j * ld + lane) == maximum ? splat(1.0F) : Lanes{};
    }
    const Lanes share = load(totals + lane) / ties;
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes s = load(scores + j * ld + lane);
      const Lanes direct = load(weights + j * ld + lane) * load(da + j * ld + lane);
      store(da + j * ld + lane, (direct - (s == maximum ? share : Lanes{})) * scale);
    }
  }
}

HEDGEROW_CLONES void cross_entropy_tile(const float* teacher,
                                        const float* teacher_sums,
                                        const float* denominators,
                                        std::int64_t ld,
                                        std::int64_t keys,
                                        std::int64_t lanes,
                                        float scale,
                                        float* student,
                                        float* losses) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    const Lanes normaliser = 1.0F / load(teacher_sums + lane);
    const Lanes inverse = 1.0F / load(denominators + lane);
    Lanes loss{}, unclamped{};
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes t = load(teacher + j * ld + lane) * normaliser;
      const Lanes a = load(student + j * ld + lane) * inverse;
      loss -= t * log_lanes(a < kWeight ? splat(kWeight) : a);
      unclamped += a < kWeight ? Lanes{} : t;
    }
    store(losses + lane, loss);
    const Lanes common = unclamped * inverse;
    for (std::int64_t j = 0; j < keys; ++j) {
      const Lanes t = load(teacher + j * ld + lane) * normaliser;
      const Lanes w = load(student + j * ld + lane);
      const Lanes own = w * inverse < kWeight ? Lanes{} : t / w;
      store(student + j * ld + lane, (common - own) * scale);
    }
  }
}

HEDGEROW_CLONES void activate_tile(const FeatureMapOptions& options,
                                   const float* z,
                                   std::int64_t ld,
                                   std::int64_t projected,
                                   std::int64_t lanes,
                                   float* phi) {
  const FeatureMapKind activation = options.row().activation;
  if (maps::is_of_row(activation)) {
    const auto of_row = [&](auto map) HEDGEROW_INLINE_LAMBDA {
      const int num_signs = options.negation ? 2 : 1;
      for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
        for (int sign = 0; sign < num_signs; ++sign) {
          float* half = phi + sign * projected * ld + lane;
          const Lanes sum = exponentials(z + lane, ld, projected, sign == 0 ? 1.0F : -1.0F, half);
          clamp_and_scale(half, ld, projected, map.kNormalised ? 1.0F / sum : splat(1.0F));
        }
      }
    };
    maps::visit(of_row, activation, maps::OfRows{});
    return;
  }
  const auto t = static_cast<float>(options.temperature);
  const auto exponential = [](Lanes x) HEDGEROW_INLINE_LAMBDA { return exp_lanes_any(x); };
  const auto elementwise = [&](auto map) HEDGEROW_INLINE_LAMBDA {
    for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
      for (std::int64_t f = 0; f < projected; ++f) {
        const Lanes x = map.activate(load(z + f * ld + lane), t, exponential);
        store(phi + f * ld + lane, clamped<decltype(map)>(x));
      }
    }
  };
  maps::visit(elementwise, activation, maps::Elementwise{});
}

HEDGEROW_CLONES void activate_tile_backward(const FeatureMapOptions& options,
                                            const float* phi,
                                            const float* dphi,
                                            std::int64_t ld,
                                            std::int64_t projected,
                                            std::int64_t lanes,
                                            float* dz) {
  const FeatureMapKind activation = options.row().activation;
  if (maps::is_of_row(activation)) {
    const auto of_row = [&](auto map) HEDGEROW_INLINE_LAMBDA {
      const int num_signs = options.negation ? 2 : 1;
      for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
        for (int sign = 0; sign < num_signs; ++sign) {
          const std::int64_t half = sign * projected * ld + lane;
          const float factor = sign == 0 ? 1.0F : -1.0F;
          row_backward(map, phi + half, dphi + half, ld, projected, factor, sign == 1, dz + lane);
        }
      }
    };
    maps::visit(of_row, activation, maps::OfRows{});
    return;
  }
  const auto t = static_cast<float>(options.temperature);
  const auto elementwise = [&](auto map) HEDGEROW_INLINE_LAMBDA {
    for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
      for (std::int64_t f = 0; f < projected; ++f) {
        const Lanes p = load(phi + f * ld + lane);
        Lanes slope = map.derivative(p, t);
        if constexpr (decltype(map)::kClamped) slope = p > kClamp ? slope : Lanes{};
        store(dz + f * ld + lane, slope * load(dphi + f * ld + lane));
      }
    }
  };
  maps::visit(elementwise, activation, maps::Elementwise{});
}

}  // namespace hedgerow::kernels::cpu
