// What a layer of hybrid attention has learned, the border between its two branches, and the
// constants of its definition (kernels/hybrid_attention.hpp has the formulas). Read by every
// backend and by the callers that make the parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/problem/feature_map.hpp"

namespace hedgerow::kernels {

// Beside the denominator of linear attention without a window.
inline constexpr double kLinearEpsilon = 1e-12;

// The lower clamp of the normalised student weights inside the cross-entropy's logarithm, as the
// reference code has it.
inline constexpr double kWeightClamp = 1e-12;

struct HybridParameters {
  FeatureMapWeights q;
  // One map a query head (as LoLCATs') or one a kv head, which its query heads share with the state
  // that is made of it: the first dimension, H or G, says which. Without parameters: H.
  FeatureMapWeights k;
  at::Tensor window_factors;  // [H] fp32, logits of g; undefined with kNone
};

// First key of query i's window, but for sinks: keys first..i are softmax, keys before are linear.
[[nodiscard]] std::int64_t window_begin(WindowLayout layout,
                                        std::int64_t window_size,
                                        std::int64_t query);

// The factor on a query's gate, max(1, n / C), C the cap of the linear branch, n the keys before
// its window but for sinks (those of a recall cache count). The linear branch's weight grows with
// n, and a student that learned from short sequences loses the window in long ones; relative to the
// window this is phi_q min(1, C / n). 1 without a cap.
[[nodiscard]] float window_gain(const HybridOptions& options, std::int64_t query);

}  // namespace hedgerow::kernels
