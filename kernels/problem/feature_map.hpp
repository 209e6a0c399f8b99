// Feature maps: phi(x) = activation(x W + b) per head, so that phi_q(q).phi_k(k) stands for
// exp(q.k / sqrt(D)) (LoLCATs eq. 4). The activations, with their sources, are in kernels/maps, and
// what is known of a map in kernels/options/feature_maps.hpp. W is untied per query head, also for
// keys: phi_k belongs to the query head (as in LoLCATs' code), so a key head shared by several
// query heads is mapped once per query head.
//
// Two maps stand for that exponential without learning, with x' = D^-1/4 x so that
// q'.k' = q.k / sqrt(D). Positive random features (FAVOR+, 2009.14794 lemma 1): the layer is Omega,
// phi(x) = exp(Omega^T x' - |x'|^2 / 2) / sqrt(f), whose product is right on average over draws of
// Omega. Taylor: one feature x'^a / sqrt(a!) for each monomial of degree <= 2, whose product is 1 +
// s + s^2 / 2, s = q'.k'; odd degrees give weights below 0.
//
// Shapes: B batch, H query heads, G kv heads, T tokens, D head_dim, f projected features, F
// features after concatenation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/options/attention_options.hpp"

namespace hedgerow::kernels {

// The lower clamp of a feature: LoLCATs' eps. Zero gradient below it. The identity and Taylor keep
// their signs instead, and positive random features their size: those of a long key lie below the
// clamp as a rule, and clamping would give such keys weight that they do not have.
inline constexpr double kFeatureClamp = 1e-12;

struct FeatureMapWeights {
  at::Tensor layer;  // [H, D, f] fp32, LoLCATs' `mlp.layer`; undefined: no projection (f = D)
  at::Tensor bias;   // [H, f] fp32; undefined: none. An importer broadcasts LoLCATs' [1, H, 1, 1].
  // kPositiveRandom needs a layer, the same draw on both sides; it and kTaylor have no bias.
};

// F of a map: the columns of its layer (head_dim without one), doubled with negation; for kTaylor
// the monomials in so many variables.
[[nodiscard]] std::int64_t feature_dim(const FeatureMapWeights& weights,
                                       const FeatureMapOptions& options,
                                       std::int64_t head_dim);

// x [B, H or G, T, D] (bf16 or fp32) -> [B, num_heads, T, F] fp32 (fp64 for fp64). G < num_heads:
// head h reads x's head h / (num_heads / G). Differentiable (autograd) in x, layer and bias. The
// plain backend: the fused attention computes the same inside its tiles. Throws c10::Error naming
// what does not fit. Any thread.
at::Tensor apply_feature_map(const at::Tensor& x,
                             const FeatureMapWeights& weights,
                             const FeatureMapOptions& options,
                             std::int64_t num_heads,
                             FeatureMapRole role);

// The checks of apply_feature_map.
void check_feature_map(const at::Tensor& x,
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
//   kGaussian    noise standard normal, as it is
//   kOrthogonalChi  noise standard normal -> Omega in blocks of D orthonormal columns (Haar), each
//                as long as its column of noise: a length of chi_D that direction knows nothing of,
//                so that every column is a standard normal one, and those of a block are orthogonal
at::Tensor start_feature_map(FeatureMapStart start, const at::Tensor& noise);

// Draws Omega again: the layer's values become the start's, in place, so that every holder of the
// tensor sees them. Give both sides of a map the same noise.
void redraw_feature_map(const FeatureMapWeights& weights,
                        FeatureMapStart start,
                        const at::Tensor& noise);

}  // namespace hedgerow::kernels
