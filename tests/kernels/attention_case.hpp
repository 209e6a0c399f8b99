// One attention problem for the kernel tests: shapes, seeded inputs and parameters, and the
// gradients that autograd finds for any of the folder's functions. Inputs are drawn in fp32 and
// rounded to the case's dtype, so that the fp64 reference sees exactly the values that the kernel
// sees.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

#include "kernels/hybrid_attention.hpp"

namespace hedgerow::kernels::testing {

inline constexpr WindowLayout kLayouts[] = {
    WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone};

struct AttentionCase {
  std::int64_t B = 2, H = 4, G = 2, T = 65, D = 16, f = 8;
  at::ScalarType dtype = at::kFloat;
  HybridOptions options = {};
  bool bias = false;
  bool shares_key_maps = false;  // one a kv head
  double scale = 1.0;            // of q and k: large values make extreme logits
  std::uint64_t seed = 17;

  [[nodiscard]] std::string name() const;
};

struct AttentionInputs {
  at::Tensor q, k, v, dy;
  HybridParameters parameters;

  // The same values in another dtype and on another device; leaves that require a gradient.
  [[nodiscard]] AttentionInputs as(at::ScalarType inputs,
                                   at::ScalarType maps,
                                   at::DeviceType device = at::kCPU) const;
  [[nodiscard]] std::vector<at::Tensor> leaves() const;
};

AttentionInputs make_inputs(const AttentionCase& shape);

// What a differentiable function of the inputs gives: its value and the gradient of every leaf, in
// fp64 on the CPU.
struct Outcome {
  at::Tensor value;
  std::vector<at::Tensor> gradients;
};
using AttentionFunction = std::function<at::Tensor(const AttentionInputs&)>;
Outcome differentiate(const AttentionFunction& function, const AttentionInputs& inputs);
// Output of the entry hybrid_attention, in the case's dtype on the CPU.
Outcome hybrid_outcome(const AttentionCase& shape, const AttentionInputs& inputs);

// The 2 x rule: the error of `ours` against the fp64 `exact` is at most twice that of a plain
// version of the same precision, with a floor of a few units of rounding for values that the plain
// version happens to hit.
void expect_within_twice(const at::Tensor& ours,
                         const at::Tensor& plain,
                         const at::Tensor& exact,
                         const std::string& what,
                         double factor = 2.0);

// The same for a value and all gradients of one case.
void expect_outcome(const AttentionCase& shape,
                    const Outcome& ours,
                    const Outcome& plain,
                    const Outcome& exact);

// The T x T hybrid with the same inputs in `dtype`, products in fp32 (fp64 for fp64): the plain
// version, and the exact one.
Outcome reference_outcome(const AttentionCase& shape,
                          const AttentionInputs& inputs,
                          at::ScalarType dtype);

// The hybrid as a plain program in bf16 writes it: matrix products of bf16 tensors, rounded to
// bf16, weights (normalised, [B, H, T, T]) in fp32.
at::Tensor plain_bfloat16_weights(const AttentionInputs& inputs, const HybridOptions& options);
at::Tensor plain_bfloat16_hybrid(const AttentionInputs& inputs, const HybridOptions& options);
at::Tensor plain_bfloat16_cross_entropy(const AttentionInputs& inputs,
                                        const HybridOptions& options);

// The plain versions that the CPU's entries are held to: in bf16 products where they use these
// (bf16 inputs on a processor with AMX), else with products in fp32.
Outcome plain_hybrid_outcome(const AttentionCase& shape, const AttentionInputs& inputs);
Outcome plain_cross_entropy_outcome(const AttentionCase& shape, const AttentionInputs& inputs);
// expect_outcome() of those entries. Where products are bf16, what is one sum over all queries (a
// loss; a head's window factor, summed on the linear side, where large terms cancel) is held to
// 10 x: its error is one number, which the plain version may happen to hit.
void expect_entry_outcome(const AttentionCase& shape, Outcome ours, Outcome plain, Outcome exact);

// Autograd's gradient of every leaf, against central differences along a random direction. Inputs
// are fp64.
void expect_finite_differences(const AttentionFunction& function,
                               const AttentionInputs& inputs,
                               const std::string& what);

// Each row of y = attend(q, k, v) depends on no later token: y before token t keeps its bytes when
// the inputs from t on change, and y at t changes.
void expect_causal(
    const AttentionCase& shape,
    const AttentionInputs& x,
    const std::vector<std::int64_t>& tokens,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>&
        attend);

inline const std::vector<std::string> kLeafNames = {
    "q", "k", "v", "layer_q", "layer_k", "window_factors", "bias_q", "bias_k"};

}  // namespace hedgerow::kernels::testing
