#include "kernels/problem/exponential_maps.hpp"

#include <ATen/ATen.h>

#include <cmath>

namespace hedgerow::kernels {

double exponential_map_scale(std::int64_t head_dim) {
  return 1.0 / std::sqrt(std::sqrt(static_cast<double>(head_dim)));
}

void check_exponential_map(const std::string& what,
                           const FeatureMapWeights& weights,
                           const FeatureMapOptions& options) {
  const bool random = row_of(options.kind).one_draw;
  if (row_of(options.kind).is_activation()) {
    return;
  }
  TORCH_CHECK(!weights.bias.defined(),
              what,
              " must have no bias to be ",
              random ? "a positive random map" : "a Taylor map",
              ", found one");
  TORCH_CHECK(!random || weights.layer.defined(),
              what,
              " must have a layer, its Omega, to be a positive random map, found none");
  TORCH_CHECK(random || (options.order >= 1 && options.order <= kMaxTaylorOrder),
              what,
              " must have an order of 1 to ",
              kMaxTaylorOrder,
              " to be a Taylor map, found ",
              options.order);
}

at::Tensor positive_random_features(const at::Tensor& z, const at::Tensor& x, FeatureMapRole role) {
  const double scale = exponential_map_scale(x.size(-1));
  const double normaliser = 1.0 / std::sqrt(static_cast<double>(z.size(-1)));
  if (role == FeatureMapRole::kQuery) {
    // |x'|^2 / 2 is the same in all features of a query, and goes with the shift.
    return at::exp((z - at::amax(z, -1, true)) * scale) * normaliser;
  }
  return at::exp(z * scale - x.square().sum(-1, true) * (0.5 * scale * scale)) * normaliser;
}

// Those of degree n whose first variable is i, x_i^k / sqrt(k!) times those of degree n - k in the
// variables behind i, for k = n, .., 1; and the latter are the end of what degree n - k holds.
std::vector<at::Tensor> monomials(const at::Tensor& x, std::int64_t order) {
  const std::int64_t d = x.size(-1);
  std::vector<at::Tensor> powers = {at::ones_like(x)};  // x^k / sqrt(k!)
  std::vector<at::Tensor> degrees = {at::ones_like(x.narrow(-1, 0, 1))};
  for (std::int64_t n = 1; n <= order; ++n) {
    powers.push_back(powers.back() * x * (1.0 / std::sqrt(static_cast<double>(n))));
    std::vector<at::Tensor> parts;
    for (std::int64_t i = 0; i < d; ++i) {
      for (std::int64_t k = n; k >= 1; --k) {
        const at::Tensor& lower = degrees[static_cast<std::size_t>(n - k)];
        // C(v + m - 1, m) monomials of degree m in v variables.
        const std::int64_t v = d - 1 - i, m = n - k;
        const std::int64_t behind = m == 0 ? 1 : (v == 0 ? 0 : num_monomials(v - 1, m));
        if (behind > 0) {
          parts.push_back(powers[static_cast<std::size_t>(k)].narrow(-1, i, 1) *
                          lower.narrow(-1, lower.size(-1) - behind, behind));
        }
      }
    }
    degrees.push_back(at::cat(parts, -1));
  }
  return degrees;
}

}  // namespace hedgerow::kernels
