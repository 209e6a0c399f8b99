// The two maps that stand for exp(q.k / sqrt(D)) without learning (feature_map.hpp has their
// formulas), in plain ATen: differentiable, on any device, and without a sum whose order the device
// would choose. exponential_map_tiles.hpp is the same on the CPU's tiles.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels {

// x' = scale x: D^-1/4, so that q'.k' = q.k / sqrt(D).
[[nodiscard]] double exponential_map_scale(std::int64_t head_dim);

// Throws c10::Error, `what` first, unless the weights and the order suit the kind: positive random
// features need a layer, Taylor an order of 1 to kMaxTaylorOrder, neither takes a bias. Other kinds
// pass.
void check_exponential_map(const std::string& what,
                           const FeatureMapWeights& weights,
                           const FeatureMapOptions& options);

// z = x Omega [B, H, T, f] and x [B, H, T, D], neither scaled yet -> phi [B, H, T, f].
at::Tensor positive_random_features(const at::Tensor& z, const at::Tensor& x, FeatureMapRole role);

// x [.., d] -> by degree n = 0 .. order, [.., C(d + n - 1, n)]: x^a / sqrt(a!) for every
// multi-index a of degree n, in lexicographic order (x_0 x_0, x_0 x_1, ..). The products of equal
// degree of two tokens sum to (q.k)^n / n!: symmetric products are merged, and n! / a! of them are
// one.
std::vector<at::Tensor> monomials(const at::Tensor& x, std::int64_t order);

}  // namespace hedgerow::kernels
