#include "kernels/hybrid_attention.hpp"

#include <cmath>

#include "kernels/softmax_attention.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::differentiate;
using testing::expect_within_twice;
using testing::kLeafNames;
using testing::make_inputs;
using testing::Outcome;

Outcome fused(const AttentionCase& shape, const AttentionInputs& inputs) {
  return differentiate(
      [&](const AttentionInputs& x) {
        return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options);
      },
      inputs.as(shape.dtype, at::kFloat));
}

// What a plain program does in the case's precision: matrix products in the input's dtype, T x T
// tensors in fp32.
at::Tensor plain_attention(const AttentionInputs& x, const AttentionCase& shape) {
  if (shape.dtype == at::kFloat) {
    return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape.options);
  }
  HybridParameters rounded = x.parameters;
  const auto round = [](at::Tensor& w) {
    w = w.defined() ? w.to(at::kBFloat16).to(at::kFloat) : w;
  };
  round(rounded.q.layer);
  round(rounded.k.layer);
  return hybrid_attention_reference(x.q, x.k, x.v, rounded, shape.options);
}

Outcome plain(const AttentionCase& shape, const AttentionInputs& inputs) {
  return differentiate([&](const AttentionInputs& x) { return plain_attention(x, shape); },
                       inputs.as(shape.dtype, at::kFloat));
}

Outcome exact(const AttentionCase& shape, const AttentionInputs& inputs) {
  return differentiate(
      [&](const AttentionInputs& x) {
        return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape.options);
      },
      inputs.as(at::kDouble, at::kDouble));
}

void expect_case(const AttentionCase& shape) {
  const AttentionInputs inputs = make_inputs(shape);
  const Outcome ours = fused(shape, inputs), same = plain(shape, inputs),
                truth = exact(shape, inputs);
  expect_within_twice(ours.value, same.value, truth.value, shape.name() + ", y");
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    ASSERT_EQ(ours.gradients[i].defined(), truth.gradients[i].defined())
        << shape.name() << ", d" << kLeafNames[i];
    if (truth.gradients[i].defined()) {
      expect_within_twice(ours.gradients[i],
                          same.gradients[i],
                          truth.gradients[i],
                          shape.name() + ", d" + kLeafNames[i]);
    }
  }
}

TEST(HybridAttention, FusedFormEqualsTheReferenceInValueAndEveryGradient) {
  for (const WindowLayout layout :
       {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
    for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
      AttentionCase shape{.T = T};
      shape.options.layout = layout;
      expect_case(shape);
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels
