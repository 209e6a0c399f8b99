// The fused CPU form of the hybrid: one task a (batch, head), walking the sequence in chunks of W
// tokens with tiles that stay in the L2 cache. README.md draws one head's walk. Called by
// hybrid_attention.cpp, which checks and owns autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "kernels/checks.hpp"
#include "kernels/cpu_tiles.hpp"
#include "kernels/hybrid_attention.hpp"

namespace hedgerow::kernels::cpu {

// What all heads of one call share. The tensors are detached; maps and gates are fp32 and
// contiguous.
struct HybridProblem {
  AttentionShape shape;
  std::int64_t F = 0, projected = 0;
  HybridOptions options;
  Products products = Products::kFloat;
  at::Tensor q, k, v;  // v undefined: only the denominators are wanted
  FeatureMapWeights map_q, map_k;
  at::Tensor gate;  // [H] sigmoid(window_factors); undefined with kNone

  [[nodiscard]] bool windowed() const { return options.layout != WindowLayout::kNone; }
  // Queries are walked in chunks; the state before chunk c holds the keys of the chunks before c -
  // state_lag().
  [[nodiscard]] std::int64_t chunk() const {
    return windowed() ? options.window_size : kPlainChunk;
  }
  [[nodiscard]] std::int64_t num_chunks() const { return (shape.T + chunk() - 1) / chunk(); }
  [[nodiscard]] std::int64_t state_lag() const { return windowed() ? 1 : 0; }
  [[nodiscard]] std::int64_t tile_lanes() const {
    return padded(std::min({chunk(), kQueryTile, shape.T}));
  }
  [[nodiscard]] std::int64_t chunk_lanes() const { return padded(std::min(chunk(), shape.T)); }

  static constexpr std::int64_t kPlainChunk = 64;  // without a window the chunk is free
  static constexpr std::int64_t kQueryTile =
      64;  // queries a tile: 128 keys x 64 queries of scores are 32 KB
};

HybridProblem make_hybrid_problem(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options);

struct HybridForward {
  at::Tensor y;  // [B, H, T, D] of the output dtype, in [B, T, H, D] memory; undefined without v
  at::Tensor y_fp32;       // the same unrounded, where asked for (y itself when that is fp32)
  at::Tensor denominator;  // Z [B, H, T] fp32
  at::Tensor linear_mass;  // sum_j l_ij [B, H, T] fp32
};
HybridForward hybrid_forward_cpu(const HybridProblem& problem, bool keep_fp32);

// Which gradients somebody needs, and the gradients (undefined where not needed), in the
// parameters' shapes, fp32; dq, dk and dv in the inputs' dtype.
struct HybridNeeds {
  bool q = false, k = false, v = false, map_q = false, map_k = false, window_factors = false;
};
struct HybridGradients {
  at::Tensor q, k, v;
  FeatureMapWeights map_q, map_k;
  at::Tensor window_factors;  // [H]
};
HybridGradients hybrid_backward_cpu(const HybridProblem& problem,
                                    const HybridForward& forward,
                                    const at::Tensor& dy,
                                    const HybridNeeds& needs);

}  // namespace hedgerow::kernels::cpu
