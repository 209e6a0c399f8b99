// The fused CUDA cross-entropy of attention weights.
#include <c10/core/GradMode.h>

#include "tests/kernels/cuda/cuda_backend.hpp"

namespace hedgerow::kernels::testing {
namespace {

AttentionInputs constant_inputs(AttentionInputs x) {
  x.q = x.q.detach();
  x.k = x.k.detach();
  return x;
}

Programs programs(const AttentionCase& shape) {
  const HybridOptions options = shape.options;
  return {
      .ours =
          [options](const AttentionInputs& x) {
            return transfer_cross_entropy(x.q, x.k, x.parameters, options, Backend::kCuda);
          },
      .plain =
          [options](const AttentionInputs& x) { return plain_bfloat16_cross_entropy(x, options); },
      .exact =
          [options](const AttentionInputs& inputs) {
            const AttentionInputs x = constant_inputs(inputs);
            return transfer_cross_entropy_reference(x.q, x.k, x.parameters, options);
          }};
}

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorAtAnyLength) {
  expect_lengths(programs, {1, 63, 64, 65, 127, 128, 200, 330});
}

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorForHeadDimsColumnsAndGroups) {
  expect_sizes(programs, 6);  // the value is one number
}

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorInSegments) { expect_segments(programs); }

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorForEveryMap) { expect_maps(programs); }

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorForKeyMapsOfKvHeads) {
  expect_shared_key_maps(programs);
}

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorWithSinks) { expect_sinks(programs); }

TEST_P(CudaCrossEntropy, GivesNoGradientToWindowFactorsThatNoWindowReads) {
  expect_unread_window_factors(programs);
}

TEST_P(CudaCrossEntropy, HoldsAtExtremeLogits) { expect_extreme_logits(programs); }

// The identity's weights have signs; what is negative lies below the clamp.
TEST_P(CudaCrossEntropy, ClampsNegativeWeights) {
  AttentionCase shape = small(WindowLayout::kTerraced, 150);
  shape.f = 0;
  shape.scale = 0.05;  // so that no denominator is negative
  shape.options.set_map({.feature_map = FeatureMapKind::kIdentity, .negation = false});
  const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
  const c10::NoGradGuard no_grad;
  const at::Tensor found =
      transfer_cross_entropy(x.q, x.k, x.parameters, shape.options, Backend::kCuda);
  const AttentionInputs y = make_bfloat16_inputs(shape).as(at::kFloat, at::kFloat);
  const double expected =
      transfer_cross_entropy_reference(y.q, y.k, y.parameters, shape.options).item<double>();
  EXPECT_NEAR(found.item<double>(), expected, 0.01 * expected);
}

TEST_P(CudaCrossEntropy, StaysWithinTwiceThePlainErrorForAnyWindow) {
  expect_windows(programs, 330, {5, 96, 128});
}

// Features of head 0 are e^-22 and thereabouts: alive, but every linear weight lies below the
// clamp, and c / l would be 1e17.
TEST_P(CudaCrossEntropy, HasNoGradientWhereTheClampActs) {
  AttentionCase shape = small(WindowLayout::kTerraced, 200);
  shape.f = 64;
  shape.bias = true;
  shape.options.set_map({.feature_map = FeatureMapKind::kEluPlusOne, .negation = false});
  AttentionInputs inputs = make_bfloat16_inputs(shape);
  inputs.parameters.q.bias[0].fill_(-22.0);
  inputs.parameters.k.bias[0].fill_(-22.0);
  expect_programs(shape, inputs, programs(shape));
  const at::Tensor student =
      plain_bfloat16_weights(inputs.as(at::kBFloat16, at::kFloat), shape.options);
  EXPECT_GT((student < kWeightClamp).tril().sum().item<std::int64_t>(), 1000)
      << "the case is meant to reach the clamp";
}

TEST_P(CudaCrossEntropy, GivesTheSameBytesFromRunToRunAndWithoutGradients) {
  for (const WindowLayout layout : kWindowLayouts) {
    const AttentionCase shape = small(layout, 330);
    const AttentionInputs inputs = make_bfloat16_inputs(shape);
    const auto run = [&] {
      return differentiate(programs(shape).ours, inputs.as(at::kBFloat16, at::kFloat, GetParam()));
    };
    const Outcome one = run(), again = run();
    for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
      EXPECT_TRUE(!one.gradients[i].defined() || at::equal(one.gradients[i], again.gradients[i]))
          << shape.name() << ", d" << kLeafNames[i];
    }
    const c10::NoGradGuard no_grad;
    const at::Tensor without =
        programs(shape).ours(inputs.as(at::kBFloat16, at::kFloat, GetParam()));
    EXPECT_EQ(without.item<double>(), one.value.item<double>()) << shape.name();
    EXPECT_EQ(again.value.item<double>(), one.value.item<double>()) << shape.name();
  }
}

TEST_P(CudaCrossEntropy, PropagatesNan) {
  const AttentionCase shape = small(WindowLayout::kTerraced, 200);
  for (const bool in_q : {true, false}) {
    AttentionInputs inputs = make_bfloat16_inputs(shape);
    (in_q ? inputs.q : inputs.k).select(2, 70).fill_(NAN);
    const c10::NoGradGuard no_grad;
    EXPECT_TRUE(std::isnan(
        programs(shape).ours(inputs.as(at::kBFloat16, at::kFloat, GetParam())).item<double>()))
        << (in_q ? "q" : "k");
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
