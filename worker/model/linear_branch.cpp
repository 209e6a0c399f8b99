#include "worker/model/linear_branch.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

namespace hedgerow::worker {
namespace {

constexpr double kOffFactor = 10.0;  // g = sigmoid(10) = 0.99995
constexpr double kOffBias = 50.0;    // exp(-50) = 2e-22 lies far below the clamp

// Feature `high` of the first half, and `low` of the negated half, hold all of the map; queries and
// keys have theirs in different places, so that no product of two large features is left.
void point(const at::Tensor& bias, std::int64_t high, std::int64_t low) {
  bias.zero_();
  bias.select(1, high).fill_(kOffBias);
  bias.select(1, low).fill_(-kOffBias);
}

// Whether phi(0) is above the clamp, so that only a bias brings the features below it.
bool needs_bias(const kernels::FeatureMapOptions& map) {
  const at::Tensor phi = kernels::apply_feature_map(
      at::zeros({1, 1, 1, 1}), {}, map, /*num_heads=*/1, kernels::FeatureMapRole::kKey);
  return (phi > kernels::kFeatureClamp).any().item<bool>();
}

bool can_switch_off(const kernels::HybridParameters& parameters,
                    const kernels::FeatureMapOptions& map) {
  const kernels::FeatureMapRow& row = map.row();
  if (!parameters.q.layer.defined() || !parameters.window_factors.defined()) return false;
  if (!row.is_activation()) return false;
  if (row.negation) return parameters.q.bias.defined() && parameters.q.layer.size(2) >= 4;
  return parameters.q.bias.defined() || !needs_bias(map);
}

}  // namespace

bool switch_off_linear_branch(const kernels::HybridParameters& parameters,
                              const kernels::FeatureMapOptions& map) {
  if (!can_switch_off(parameters, map)) return false;
  const c10::NoGradGuard no_grad;
  const at::Tensor &bias_q = parameters.q.bias, &bias_k = parameters.k.bias;
  parameters.q.layer.zero_();
  parameters.k.layer.zero_();
  parameters.window_factors.fill_(kOffFactor);
  const kernels::FeatureMapRow& row = map.row();
  if (row.negation) {
    point(bias_q, 0, 1);
    point(bias_k, 2, 3);
  } else {
    const double bias = needs_bias(map) ? -kOffBias : row.clamped ? -1.0 : 0.0;
    if (bias_q.defined()) bias_q.fill_(bias);
    if (bias_k.defined()) bias_k.fill_(bias);
  }
  return true;
}

bool is_linear_branch_off(const kernels::HybridParameters& parameters) {
  if (!parameters.q.layer.defined() || !parameters.window_factors.defined()) return false;
  return (parameters.window_factors == kOffFactor).all().item<bool>() &&
         !parameters.q.layer.any().item<bool>() && !parameters.k.layer.any().item<bool>();
}

}  // namespace hedgerow::worker
