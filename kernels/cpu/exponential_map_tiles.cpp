#include "kernels/cpu/exponential_map_tiles.hpp"

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_vector.hpp"

namespace hedgerow::kernels::cpu {
namespace {

// 1 / sqrt(a!) of a monomial: by how often its variables repeat.
constexpr float kOneTwice = 0.707106781186547524F;   // 1 / sqrt(2!)
constexpr float kOneThrice = 0.408248290463863016F;  // 1 / sqrt(3!)

// sum phi dphi of one vector of lanes.
HEDGEROW_INLINE Lanes dot(const float* phi,
                          const float* dphi,
                          std::int64_t ld,
                          std::int64_t features) {
  Lanes sum{};
  for (std::int64_t f = 0; f < features; ++f) {
    sum += load(phi + f * ld) * load(dphi + f * ld);
  }
  return sum;
}

// One vector of lanes of the Taylor features; x [d] is x', which already lies in phi.
HEDGEROW_INLINE void products(
    const float* x, std::int64_t order, std::int64_t ld, std::int64_t d, float* phi) {
  float* out = phi;
  if (order >= 2) {
    for (std::int64_t i = 0; i < d; ++i) {
      const Lanes xi = load(x + i * ld);
      for (std::int64_t j = i; j < d; ++j, out += ld) {
        store(out, xi * load(x + j * ld) * (j == i ? kOneTwice : 1.0F));
      }
    }
  }
  if (order < 3) {
    return;
  }
  for (std::int64_t i = 0; i < d; ++i) {
    const Lanes xi = load(x + i * ld);
    for (std::int64_t j = i; j < d; ++j) {
      const Lanes pair = xi * load(x + j * ld);
      const float weight = j == i ? kOneTwice : 1.0F;
      store(out, pair * load(x + j * ld) * (j == i ? kOneThrice : kOneTwice));
      out += ld;
      for (std::int64_t k = j + 1; k < d; ++k, out += ld) {
        store(out, pair * load(x + k * ld) * weight);
      }
    }
  }
}

// dx [d] += the share of degree 2 and 3, given their gradients g in the order of products().
HEDGEROW_INLINE void products_backward(const float* x,
                                       const float* g,
                                       std::int64_t order,
                                       std::int64_t ld,
                                       std::int64_t d,
                                       float* dx) {
  const float* second = g;
  const float* third = g + d * (d + 1) / 2 * ld;
  for (std::int64_t i = 0; i < d; ++i) {
    const Lanes xi = load(x + i * ld);
    for (std::int64_t j = i; j < d; ++j, second += ld) {
      const Lanes xj = load(x + j * ld);
      // What the product x_i x_j receives, also as a factor of degree 3.
      Lanes dpair = load(second) * (j == i ? kOneTwice : 1.0F);
      if (order >= 3) {
        const Lanes pair = xi * xj;
        const Lanes own = load(third) * (j == i ? kOneThrice : kOneTwice);
        third += ld;
        dpair += own * xj;
        store(dx + j * ld, load(dx + j * ld) + own * pair);
        const float weight = j == i ? kOneTwice : 1.0F;
        for (std::int64_t k = j + 1; k < d; ++k, third += ld) {
          const Lanes gradient = load(third) * weight;
          dpair += gradient * load(x + k * ld);
          store(dx + k * ld, load(dx + k * ld) + gradient * pair);
        }
      }
      store(dx + i * ld, load(dx + i * ld) + dpair * xj);
      store(dx + j * ld, load(dx + j * ld) + dpair * xi);
    }
  }
}

}  // namespace

HEDGEROW_CLONES void positive_random_tile(const float* z,
                                          const float* squares,
                                          float scale,
                                          std::int64_t ld,
                                          std::int64_t projected,
                                          std::int64_t lanes,
                                          float* phi) {
  const float normaliser = 1.0F / std::sqrt(static_cast<float>(projected));
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    Lanes shift = splat(-std::numeric_limits<float>::infinity());
    if (squares == nullptr) {
      for (std::int64_t f = 0; f < projected; ++f) {
        shift = larger(load(z + f * ld + lane), shift);
      }
    }
    const Lanes half = squares == nullptr ? Lanes{} : load(squares + lane) * (0.5F * scale * scale);
    for (std::int64_t f = 0; f < projected; ++f) {
      const Lanes raw = load(z + f * ld + lane);
      const Lanes exponent = squares == nullptr ? (raw - shift) * scale : raw * scale - half;
      store(phi + f * ld + lane, exp_lanes_any(exponent) * normaliser);
    }
  }
}

HEDGEROW_CLONES void positive_random_tile_backward(const float* phi,
                                                   const float* dphi,
                                                   float scale,
                                                   std::int64_t ld,
                                                   std::int64_t projected,
                                                   std::int64_t lanes,
                                                   float* dz,
                                                   float* sums) {
  const float top = 1.0F / std::sqrt(static_cast<float>(projected));  // a query's largest feature
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    const Lanes sum = dot(phi + lane, dphi + lane, ld, projected);
    Lanes ties{};
    if (sums != nullptr) {
      store(sums + lane, sum);
    } else {
      for (std::int64_t f = 0; f < projected; ++f) {
        ties += load(phi + f * ld + lane) == top ? splat(1.0F) : Lanes{};
      }
    }
    const Lanes share = sums == nullptr ? sum / ties : Lanes{};
    for (std::int64_t f = 0; f < projected; ++f) {
      const Lanes p = load(phi + f * ld + lane);
      const Lanes back = p == top ? share : Lanes{};
      store(dz + f * ld + lane, (p * load(dphi + f * ld + lane) - back) * scale);
    }
  }
}

HEDGEROW_CLONES void taylor_tile(const float* z,
                                 float scale,
                                 std::int64_t order,
                                 std::int64_t ld,
                                 std::int64_t projected,
                                 std::int64_t lanes,
                                 float* phi) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    float* x = phi + ld + lane;
    store(phi + lane, splat(1.0F));
    for (std::int64_t i = 0; i < projected; ++i) {
      store(x + i * ld, load(z + i * ld + lane) * scale);
    }
    products(x, order, ld, projected, x + projected * ld);
  }
}

HEDGEROW_CLONES void taylor_tile_backward(const float* phi,
                                          const float* dphi,
                                          float scale,
                                          std::int64_t order,
                                          std::int64_t ld,
                                          std::int64_t projected,
                                          std::int64_t lanes,
                                          float* dz) {
  for (std::int64_t lane = 0; lane < lanes; lane += kLanes) {
    const float* first = dphi + ld + lane;
    for (std::int64_t i = 0; i < projected; ++i) {
      store(dz + i * ld + lane, load(first + i * ld));
    }
    if (order >= 2) {
      products_backward(phi + ld + lane, first + projected * ld, order, ld, projected, dz + lane);
    }
    for (std::int64_t i = 0; i < projected; ++i) {
      store(dz + i * ld + lane, load(dz + i * ld + lane) * scale);
    }
  }
}

HEDGEROW_CLONES void subtract_scaled_rows(const float* x,
                                          std::int64_t ld_x,
                                          const float* values,
                                          float factor,
                                          std::int64_t rows,
                                          std::int64_t cols,
                                          float* out,
                                          std::int64_t ld_out) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float value = factor * values[i];
    for (std::int64_t c = 0; c < cols; c += kLanes) {
      store(out + i * ld_out + c, load(out + i * ld_out + c) - load(x + i * ld_x + c) * value);
    }
  }
}

}  // namespace hedgerow::kernels::cpu
