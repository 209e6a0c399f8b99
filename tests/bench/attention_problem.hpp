// One attention problem of kernels_bench, drawn at random on the CPU: unit queries and keys, and
// the parameters of a layer at its start, projections that keep their scale and g = 0.1.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "storage/model/attention_spec.hpp"

namespace hedgerow::tests {

struct AttentionSize {
  std::int64_t B = 1, H = 1, G = 1, T = 1, D = 64;
};

struct AttentionInputs {
  at::Tensor q, k, v, dy;  // [B, H, T, D], [B, G, T, D], dy as q
  [[nodiscard]] AttentionInputs in(at::ScalarType dtype) const;
};

// fp32; the same draw for the same size.
[[nodiscard]] AttentionInputs draw_inputs(const AttentionSize& size);

struct HybridCase {
  kernels::HybridParameters parameters;  // leaves that want gradients
  kernels::HybridOptions options;
  [[nodiscard]] std::vector<at::Tensor> trained() const;  // those that are defined
};

[[nodiscard]] HybridCase draw_hybrid(const storage::AttentionSpec& spec, const AttentionSize& size);

// One decode step behind a context of all keys, which it then grows.
[[nodiscard]] std::function<void()> decode_call(const AttentionInputs& inputs,
                                                const HybridCase& hybrid);

}  // namespace hedgerow::tests
