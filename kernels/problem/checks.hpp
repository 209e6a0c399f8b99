// The argument checks that the operations share. Each throws c10::Error with one sentence that
// names the argument, what was expected and what was found.
#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels {

// Sizes of one attention problem.
struct AttentionShape {
  std::int64_t B = 0, H = 0, G = 0, T = 0, D = 0;
  [[nodiscard]] std::int64_t group() const { return H / G; }
};

// "[4, 9, 512, 64]"
[[nodiscard]] std::string describe(at::IntArrayRef sizes);

// q [B, H, T, D], k and v [B, G, T, D], one floating dtype and one device, G divides H, T >= 1. v
// may be undefined.
AttentionShape check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// The sizes, of tensors that check_attention has passed.
[[nodiscard]] AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k);

// Throws c10::Error with why_not(options) where that gives a reason.
void check_options(const HybridOptions& options);

// The maps fit (H, D), those of keys (H or G, D), and give the same F, window_factors holds H
// logits where the layout has a window, sinks fit the window, and all lie on the inputs' device.
// Returns F.
std::int64_t check_parameters(const HybridParameters& parameters,
                              const HybridOptions& options,
                              std::int64_t num_heads,
                              std::int64_t num_kv_heads,
                              std::int64_t head_dim,
                              const at::Device& device);
// H as the parameters tell it, where there are no queries; else `otherwise`.
[[nodiscard]] std::int64_t num_query_heads(const HybridParameters& parameters,
                                           std::int64_t otherwise);
// Heads of the key map, H or G: as many as there are states. H without parameters.
[[nodiscard]] std::int64_t num_key_heads(const HybridParameters& parameters,
                                         std::int64_t num_heads);

// Both of one problem of the hybrid; v may be undefined.
void check_problem(const at::Tensor& q,
                   const at::Tensor& k,
                   const at::Tensor& v,
                   const HybridParameters& parameters,
                   const HybridOptions& options);

// Whether autograd will ask for a gradient of any of these (undefined ones are skipped).
[[nodiscard]] bool any_requires_grad(at::ArrayRef<at::Tensor> inputs);

// torch::autograd::Function takes no undefined tensors: absent parameters travel as empty ones.
[[nodiscard]] at::Tensor present_or_empty(const at::Tensor& x);
[[nodiscard]] at::Tensor undefined_if_empty(const at::Tensor& x);

}  // namespace hedgerow::kernels
