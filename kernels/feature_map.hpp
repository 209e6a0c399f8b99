// Feature maps: phi(x) = activation(x W + b) per head, so that phi_q(q).phi_k(k) stands for
// exp(q.k / sqrt(D)) (LoLCATs eq. 4). Hedgehog eq. 4, 5: softmax over features, or exp, of
// [xW, -xW]; T2R (2103.13076): ReLU(xW + b). W is untied per query head, also for keys: phi_k
// belongs to the query head (as in LoLCATs' code), so a key head shared by several query heads is
// mapped once per query head.
//
// Shapes: B batch, H query heads, G kv heads, T tokens, D head_dim, f projected features, F
// features after concatenation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hedgerow::kernels {

enum class FeatureMapKind { kHedgehogSoftmax, kHedgehogExp, kT2R, kEluPlusOne, kRelu, kIdentity };
enum class FeatureMapStart { kKaiming, kIdentity, kOrthogonal };

// The lower clamp of every feature: LoLCATs' eps. Zero gradient below it.
inline constexpr double kFeatureClamp = 1e-12;

struct FeatureMapOptions {
  FeatureMapKind kind = FeatureMapKind::kHedgehogSoftmax;
  bool negation = true;  // F = 2 f; the two Hedgehog kinds only
};

struct FeatureMapWeights {
  at::Tensor layer;  // [H, D, f] fp32, LoLCATs' `mlp.layer`; undefined: no projection (f = D)
  at::Tensor bias;   // [H, f] fp32; undefined: none. An importer broadcasts LoLCATs' [1, H, 1, 1].
};

// F of a map: the columns of its layer (head_dim without one), doubled with negation.
[[nodiscard]] std::int64_t feature_dim(const FeatureMapWeights& weights,
                                       const FeatureMapOptions& options,
                                       std::int64_t head_dim);

// x [B, H or G, T, D] (bf16 or fp32) -> [B, num_heads, T, F] fp32 (fp64 for fp64). G < num_heads:
// head h reads x's head h / (num_heads / G). Differentiable (autograd) in x, layer and bias. The
// plain form: the fused attention computes the same inside its tiles. Throws c10::Error naming what
// does not fit. Any thread.
at::Tensor apply_feature_map(const at::Tensor& x,
                             const FeatureMapWeights& weights,
                             const FeatureMapOptions& options,
                             std::int64_t num_heads);

// The start of a map, [H, D, f] fp32, as a pure function of `noise` [H, D, f] fp64 on the CPU; the
// caller draws it from a counter-based generator keyed by (seed, layer_idx, tensor, head), so that
// any split into blocks starts the same.
//
//   kKaiming     noise uniform in [0, 1) -> U(-b, b), b = sqrt(6 / (D f)): torch's fan-in in 3-D
//   kOrthogonal  noise standard normal -> orthonormal columns per head by Gram-Schmidt, so that
//                R's diagonal is positive (Haar); orthonormal rows when f > D
//   kIdentity    a rectangular eye; only the shape of the noise counts
at::Tensor start_feature_map(FeatureMapStart start, const at::Tensor& noise);

}  // namespace hedgerow::kernels
