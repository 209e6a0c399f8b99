// One problem of the hybrid as every backend of it sees it, and what its two directions hand over.
// The backends (x_cpu, x_aten) compute; hybrid_attention.cpp checks, owns autograd and chooses one
// by the device of q.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

#include "kernels/problem/checks.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// What sums over x are in: fp32, or fp64 for fp64.
[[nodiscard]] inline at::ScalarType sum_dtype_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// What all heads of one call share. The tensors are detached; maps and gates are contiguous, in the
// dtype that sums are in: fp32, fp64 for fp64 input.
struct HybridProblem {
  AttentionShape shape;
  std::int64_t F = 0, projected = 0;
  std::int64_t key_heads = 0;  // of map_k, and states: H or G
  HybridOptions options;
  at::Tensor q, k, v;  // v undefined: only the denominators are wanted
  FeatureMapWeights map_q, map_k;
  at::Tensor gate;  // [H] sigmoid(window_factors); undefined with kNone

  // Query heads that share a key map and a state.
  [[nodiscard]] std::int64_t key_group() const { return shape.H / key_heads; }
  // Key heads that read the same kv head.
  [[nodiscard]] std::int64_t key_heads_of_kv() const { return key_heads / shape.G; }
  // Sinks that the sequence has.
  [[nodiscard]] std::int64_t num_sinks() const { return std::min(options.num_sinks, shape.T); }
  [[nodiscard]] bool windowed() const { return options.window != WindowLayout::kNone; }
  [[nodiscard]] at::ScalarType sum_dtype() const { return sum_dtype_of(q); }
  [[nodiscard]] at::ScalarType output_dtype() const {
    return options.fp32_output ? sum_dtype() : q.scalar_type();
  }
};

HybridProblem make_hybrid_problem(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options);

struct HybridForward {
  at::Tensor y;  // [B, H, T, D] of the output dtype, in [B, T, H, D] memory; undefined without v
  at::Tensor y_saved;      // y as the backward reads it; undefined with kNothing
  at::Tensor denominator;  // Z [B, H, T]
  at::Tensor linear_mass;  // sum_j l_ij [B, H, T]
  // What else the same backend's backward reads, in an order of its own; entries may be undefined.
  std::vector<at::Tensor> saved;
};
// Room for a backend's results.
HybridForward make_hybrid_forward(const HybridProblem& problem, bool keep_for_backward);

// Which gradients are needed, and the gradients (undefined where not needed), in the parameters'
// shapes and the sums' dtype; dq, dk and dv in the inputs' dtype.
struct HybridNeeds {
  bool q = false, k = false, v = false, map_q = false, map_k = false, window_factors = false;
};
struct HybridGradients {
  at::Tensor q, k, v;
  FeatureMapWeights map_q, map_k;
  at::Tensor window_factors;  // [H]
};

}  // namespace hedgerow::kernels
