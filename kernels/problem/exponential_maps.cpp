#include "kernels/problem/exponential_maps.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <vector>

namespace hedgerow::kernels {

double exponential_map_scale(std::int64_t head_dim) {
  return 1.0 / std::sqrt(std::sqrt(static_cast<double>(head_dim)));
}

void check_exponential_map(const std::string& what,
                           const FeatureMapWeights& weights,
                           const FeatureMapOptions& options) {
  const bool random = options.row().one_draw;
  if (options.row().is_activation()) {
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

at::Tensor taylor_features(const at::Tensor& x) {
  const std::int64_t d = x.size(-1);
  const at::Tensor halves = x * x * (1.0 / std::sqrt(2.0));
  std::vector<at::Tensor> parts = {at::ones_like(x.narrow(-1, 0, 1)), x};
  for (std::int64_t i = 0; i < d; ++i) {
    parts.push_back(halves.narrow(-1, i, 1));
    parts.push_back(x.narrow(-1, i, 1) * x.narrow(-1, i + 1, d - 1 - i));
  }
  return at::cat(parts, -1);
}

}  // namespace hedgerow::kernels
