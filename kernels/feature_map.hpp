// Feature maps: phi(x) = activation(x W + b) per head, so that exp(q.k / sqrt(D)) ~ phi_q(q).phi_k(k).
// Hedgehog (arXiv 2402.04347) eq. 4, 5: softmax over features, or exp, of [xW, -xW]; T2R (2103.13076): ReLU(xW + b).
// W is untied per query head, also for keys: phi_k belongs to the query head (LoLCATs code, method.md 1.2), so a key head
// shared by several query heads is mapped once per query head.
//
// Shapes: B batch, H query heads, G kv heads, T tokens, D head_dim, f projected features, F features after concatenation.
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
  at::Tensor bias;   // [H, f] fp32; undefined: none. The scalar [1, H, 1, 1] of LoLCATs is broadcast on import.
};

// x [B, H or G, T, D] (bf16 or fp32) -> [B, H, T, F] fp32. G < H: head h reads x's head h / (H / G). Differentiable
// (autograd) in x, layer and bias. The plain form: the fused attention computes the same inside its tiles.
at::Tensor apply_feature_map(const at::Tensor& x,
                             const FeatureMapWeights& weights,
                             const FeatureMapOptions& options);

// [num_heads, head_dim, projected_dim] fp32 on the CPU, from a counter-based generator (Philox 4x32-10) keyed by
// (seed, layer_idx, tensor_id, head): independent of everything else, so any split into blocks starts the same.
//  kKaiming: U(-b, b), b = sqrt(6 / (D f)): torch's fan-in on the 3-D tensor. kIdentity: rectangular eye.
//  kOrthogonal: orthonormal columns per head (QR of a Gaussian matrix, sign-fixed; rows when f > D); callers pass the same
//  tensor_id for q and k to start them equal, as all starts do (phi_k begins as a copy of phi_q).
at::Tensor start_feature_map(FeatureMapStart start,
                             std::int64_t num_heads,
                             std::int64_t head_dim,
                             std::int64_t projected_dim,
                             std::uint64_t seed,
                             std::int64_t layer_idx,
                             std::int64_t tensor_id);

}  // namespace hedgerow::kernels
