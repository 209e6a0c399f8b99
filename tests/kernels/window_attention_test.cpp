// The control against its T x T definition. Catches: a sink counted twice or in no tile, a tile's
// border off by one, a key of the wrong group, rounding before the end.
#include "kernels/window_attention.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

at::Tensor exact_window_attention(const AttentionInputs& inputs, const HybridOptions& options) {
  const at::Tensor q = inputs.q.to(at::kDouble);
  const std::int64_t group = q.size(1) / inputs.k.size(1), T = q.size(2);
  const at::Tensor k = inputs.k.to(at::kDouble).repeat_interleave(group, 1);
  const at::Tensor v = inputs.v.to(at::kDouble).repeat_interleave(group, 1);
  at::Tensor seen = at::zeros({T, T}, at::kBool);
  for (std::int64_t i = 0; i < T; ++i) {
    for (std::int64_t j = 0; j <= i; ++j) {
      seen[i][j] =
          j >= window_begin(options.window, options.window_size, i) || j < options.num_sinks;
    }
  }
  const at::Tensor scores =
      at::matmul(q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  return at::matmul(at::softmax(scores.masked_fill(~seen, -INFINITY), -1), v);
}

void for_each_window(const std::function<void(const AttentionCase&)>& visit) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t T : {1, 3, 16, 17, 40, 100, 150}) {
      for (const std::int64_t num_sinks : {0, 1, 4, 16}) {
        AttentionCase shape{.T = T};
        shape.options.window = layout;
        shape.options.window_size = 16;
        shape.options.num_sinks = num_sinks;
        visit(shape);
      }
    }
  }
}

TEST(WindowAttention, EqualsItsDefinitionForBothLayoutsAnyLengthAndAnyNumberOfSinks) {
  for_each_window([](const AttentionCase& shape) {
    const AttentionInputs inputs = make_inputs(shape);
    const at::Tensor y = window_attention(inputs.q, inputs.k, inputs.v, shape.options);
    EXPECT_LT((y.to(at::kDouble) - exact_window_attention(inputs, shape.options))
                  .abs()
                  .max()
                  .item<double>(),
              2e-6)
        << shape.name() << ", " << shape.options.num_sinks << " sinks";
  });
}

TEST(WindowAttention, IsTheHybridWhoseLinearBranchIsNegligible) {
  for_each_window([](AttentionCase shape) {
    shape.options.set_map({.feature_map = FeatureMapKind::kRelu, .negation = false});
    AttentionInputs inputs = make_inputs(shape);
    for (FeatureMapWeights* map : {&inputs.parameters.q, &inputs.parameters.k}) map->layer.zero_();
    inputs.parameters.window_factors.fill_(10.0);
    const at::Tensor y = window_attention(inputs.q, inputs.k, inputs.v, shape.options);
    const at::Tensor hybrid =
        hybrid_attention(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
    EXPECT_TRUE(at::allclose(y, hybrid, 1e-5, 1e-5)) << shape.name();
  });
}

TEST(WindowAttention, RoundsOnceAtTheEndAndOnlyIfItsOutputIsNotFp32) {
  AttentionCase shape{.T = 100, .dtype = at::kBFloat16};
  shape.options.window_size = 16;
  shape.options.num_sinks = 4;
  const AttentionInputs inputs = make_inputs(shape);
  const at::Tensor rounded = window_attention(inputs.q, inputs.k, inputs.v, shape.options);
  shape.options.fp32_output = true;
  const at::Tensor whole = window_attention(inputs.q, inputs.k, inputs.v, shape.options);
  EXPECT_EQ(whole.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(rounded, whole.to(at::kBFloat16)));
  EXPECT_LT((whole.to(at::kDouble) - exact_window_attention(inputs, shape.options))
                .abs()
                .max()
                .item<double>(),
            2e-6);
}

TEST(WindowAttention, ASequenceGetsTheSameBitsAloneAndInABatch) {
  AttentionCase shape{.B = 3, .T = 100};
  const AttentionInputs inputs = make_inputs(shape);
  const at::Tensor all = window_attention(inputs.q, inputs.k, inputs.v, shape.options);
  for (std::int64_t b = 0; b < shape.B; ++b) {
    EXPECT_TRUE(at::equal(all.narrow(0, b, 1),
                          window_attention(inputs.q.narrow(0, b, 1),
                                           inputs.k.narrow(0, b, 1),
                                           inputs.v.narrow(0, b, 1),
                                           shape.options)));
  }
}

TEST(WindowAttention, IsRefusedWithoutAWindow) {
  AttentionCase shape;
  shape.options.window = WindowLayout::kNone;
  const AttentionInputs inputs = make_inputs(shape);
  EXPECT_THAT([&] { window_attention(inputs.q, inputs.k, inputs.v, shape.options); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("needs a window")));
}

}  // namespace
}  // namespace hedgerow::kernels
