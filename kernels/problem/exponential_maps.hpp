// The two maps that stand for exp(q.k / sqrt(D)) without learning (feature_map.hpp has their
// formulas), in plain ATen: differentiable, on any device, and without a sum whose order the device
// would choose. No fused kernel has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels {

// x' = scale x: D^-1/4, so that q'.k' = q.k / sqrt(D).
[[nodiscard]] double exponential_map_scale(std::int64_t head_dim);

// Throws c10::Error, `what` first, unless the weights suit the kind: positive random features need
// a layer, and neither takes a bias. Other kinds pass.
void check_exponential_map(const std::string& what,
                           const FeatureMapWeights& weights,
                           const FeatureMapOptions& options);

// z = x Omega [B, H, T, f] and x [B, H, T, D], neither scaled yet -> phi [B, H, T, f].
at::Tensor positive_random_features(const at::Tensor& z, const at::Tensor& x, FeatureMapRole role);

// x [.., d] -> [.., 1 + d + d (d + 1) / 2]: 1, x, and x_i x_j for i <= j in lexicographic order
// (x_0 x_0, x_0 x_1, ..), squares by 1 / sqrt(2): symmetric products are merged, and of two tokens
// the features' product is 1 + s + s^2 / 2, s = q.k.
at::Tensor taylor_features(const at::Tensor& x);

}  // namespace hedgerow::kernels
