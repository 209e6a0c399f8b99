#include "tests/kernels/cuda/cuda_hybrid.hpp"

#include <c10/core/GradMode.h>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/window_attention.hpp"

namespace hedgerow::kernels::testing {

Outcome CudaHybrid::outcome(const AttentionCase& shape, const AttentionInputs& inputs) const {
  return differentiate(programs(shape).ours, inputs.as(at::kBFloat16, at::kFloat, GetParam()));
}

Programs CudaHybrid::programs(const AttentionCase& shape) {
  const HybridOptions options = shape.options;
  return {
      .ours =
          [options](const AttentionInputs& x) {
            return hybrid_attention(x.q, x.k, x.v, x.parameters, options, Backend::kCuda);
          },
      .plain = [options](const AttentionInputs& x) { return plain_bfloat16_hybrid(x, options); },
      .exact =
          [options](const AttentionInputs& x) {
            return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, options);
          }};
}

void CudaHybrid::expect_hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const {
  expect_programs(shape, inputs, programs(shape));
}
void CudaHybrid::expect_hybrid(const AttentionCase& shape) const {
  expect_programs(shape, programs(shape));
}

namespace {

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorAtAnyLength) {
  expect_lengths(programs, {1, 63, 64, 65, 127, 128, 200});
}

// Twenty tiles and more: sums over segments, in both directions, and partial gradients.
TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorInSegments) {
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = small(layout, layout == WindowLayout::kSliding ? 1025 : 1000);
    shape.H = 1;
    expect_hybrid(shape);
  }
}

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorOfFourThousandTokens) {
  AttentionCase shape = small(WindowLayout::kTerraced, 4096);
  shape.H = 1;
  expect_hybrid(shape);
}

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorForHeadDimsColumnsAndGroups) {
  expect_sizes(programs);
}

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorForEveryMap) {
  for (const FeatureMapRow& row : kFeatureMaps) {
    if (!row.is_activation() || !row.positive) continue;
    for (const bool negation : {false, true}) {
      for (const std::int64_t f : {0, 64}) {
        if (negation && !row.negation) {
          continue;
        }
        AttentionCase shape = small(f == 0 ? WindowLayout::kSliding : WindowLayout::kTerraced, 150);
        shape.f = f;
        shape.bias = f != 0;
        shape.options.set_map({.feature_map = row.value,
                               .negation = negation,
                               .temperature = row.temperature ? 1.5 : 1.0});
        expect_hybrid(shape);
      }
    }
  }
}

// A tile is 64 tokens whatever the window is.
TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorForAnyWindow) {
  expect_windows(programs, 260, {5, 96, 128});
  // A window of one key and, where it slides, of two: of one the plain program's gradient of the
  // only score is 0 by construction, and ours a difference of rounded sums.
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape = small(layout, 260);
    shape.options.window_size = layout == WindowLayout::kTerraced ? 1 : 2;
    expect_hybrid(shape);
  }
}

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorForKeyMapsOfKvHeads) {
  expect_shared_key_maps(programs);
}

TEST_P(CudaHybrid, StaysWithinTwiceThePlainErrorWithSinks) { expect_sinks(programs); }

TEST_P(CudaHybrid, GivesNoGradientToWindowFactorsThatNoWindowReads) {
  expect_unread_window_factors(programs);
}

TEST_P(CudaHybrid, HoldsAtExtremeLogits) { expect_extreme_logits(programs); }

TEST_P(CudaHybrid, HoldsWithDeadFeatures) {
  AttentionCase shape = small(WindowLayout::kTerraced, 200);
  shape.f = 64;
  shape.bias = true;
  shape.options.set_map({.feature_map = FeatureMapKind::kT2R, .negation = false});
  AttentionInputs inputs = make_bfloat16_inputs(shape);
  inputs.parameters.q.bias[0].fill_(-100.0);  // no feature of head 0 fires
  inputs.parameters.k.bias[1].narrow(0, 0, 6).fill_(-100.0);
  expect_hybrid(shape, inputs);
}

TEST_P(CudaHybrid, SharesTheGradientOfTheMaximumAmongTies) {
  AttentionCase shape = small(WindowLayout::kTerraced, 200);
  AttentionInputs inputs = make_bfloat16_inputs(shape);
  for (std::int64_t t = 0; t + 3 < shape.T; t += 4) {  // four equal keys in a row
    inputs.k.narrow(2, t, 4).copy_(inputs.k.narrow(2, t, 1).expand({1, 1, 4, shape.D}).clone());
  }
  inputs.q.narrow(2, 140, 8).zero_();  // and queries that score all keys alike
  expect_hybrid(shape, inputs);
}

TEST_P(CudaHybrid, IsCausalBitForBit) {
  const c10::NoGradGuard no_grad;
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = small(layout, 200);
    shape.options.num_sinks = layout == WindowLayout::kSliding ? 4 : 0;
    const AttentionInputs x = make_bfloat16_inputs(shape).as(at::kBFloat16, at::kFloat, GetParam());
    expect_causal(shape,
                  x,
                  {1, 63, 64, 130, 199},
                  [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                    return hybrid_attention(q, k, v, x.parameters, shape.options, Backend::kCuda);
                  });
  }
}

// Emulated, the order of threadblocks, warps and lanes is another one in every launch.
TEST_P(CudaHybrid, GivesTheSameBytesFromRunToRunAndWhenOtherGradientsAreNotWanted) {
  for (const bool with_sinks : {false, true}) {
    for (const WindowLayout layout : kWindowLayouts) {
      AttentionCase shape = small(layout, 330);
      shape.options.num_sinks = with_sinks && layout != WindowLayout::kNone ? 4 : 0;
      shape.shares_key_maps = with_sinks;
      const AttentionInputs inputs = make_bfloat16_inputs(shape);
      const Outcome one = outcome(shape, inputs), again = outcome(shape, inputs);
      EXPECT_TRUE(at::equal(one.value, again.value)) << shape.name();
      for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
        EXPECT_TRUE(!one.gradients[i].defined() || at::equal(one.gradients[i], again.gradients[i]))
            << shape.name() << ", d" << kLeafNames[i];
      }
      AttentionInputs maps = inputs.as(at::kBFloat16, at::kFloat, GetParam());
      const at::Tensor y = hybrid_attention(maps.q.detach(),
                                            maps.k.detach(),
                                            maps.v.detach(),
                                            maps.parameters,
                                            shape.options,
                                            Backend::kCuda);
      const std::vector<at::Tensor> alone = torch::autograd::grad(
          {y}, {maps.parameters.q.layer, maps.parameters.k.layer}, {maps.dy.to(y.scalar_type())});
      EXPECT_LT((alone[0].cpu() - one.gradients[3]).abs().max().item<double>(),
                1e-5 * one.gradients[3].abs().max().item<double>());
      EXPECT_LT((alone[1].cpu() - one.gradients[4]).abs().max().item<double>(),
                1e-5 * one.gradients[4].abs().max().item<double>());
    }
  }
}

TEST_P(CudaHybrid, TakesRowsOfAnyStrideAndAlignment) {
  const AttentionCase shape = small(WindowLayout::kTerraced, 150);
  const AttentionInputs inputs = make_bfloat16_inputs(shape);
  const AttentionInputs x = inputs.as(at::kBFloat16, at::kFloat, GetParam());
  const c10::NoGradGuard no_grad;
  const at::Tensor expected =
      hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda);
  const auto strided = [](const at::Tensor& value) {
    return value.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const auto shifted = [](const at::Tensor& value) {  // one element after an aligned address
    at::Tensor wide = at::zeros({value.numel() + 1}, value.options());
    return wide.narrow(0, 1, value.numel()).view(value.sizes()).copy_(value);
  };
  EXPECT_TRUE(at::equal(
      expected,
      hybrid_attention(
          strided(x.q), strided(x.k), strided(x.v), x.parameters, shape.options, Backend::kCuda)));
  EXPECT_TRUE(at::equal(
      expected,
      hybrid_attention(
          shifted(x.q), shifted(x.k), shifted(x.v), x.parameters, shape.options, Backend::kCuda)));
}

TEST_P(CudaHybrid, GivesTheLinearShareOfTheReference) {
  for (const WindowLayout layout : kWindowLayouts) {
    AttentionCase shape = small(layout, 200);
    shape.options.num_sinks = layout == WindowLayout::kTerraced ? 4 : 0;
    shape.shares_key_maps = layout == WindowLayout::kTerraced;
    const AttentionInputs inputs = make_bfloat16_inputs(shape);
    const AttentionInputs x = inputs.as(at::kBFloat16, at::kFloat, GetParam());
    const AttentionInputs exact = inputs.as(at::kDouble, at::kDouble);
    const at::Tensor found = linear_share(x.q, x.k, x.parameters, shape.options, Backend::kCuda);
    const at::Tensor expected = linear_share(exact.q, exact.k, exact.parameters, shape.options);
    EXPECT_LT((found.to(at::kCPU, at::kDouble) - expected).abs().max().item<double>(), 2e-3)
        << shape.name();
  }
}

TEST_P(CudaHybrid, GivesTheWindowAndTheSinksAlone) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const bool fp32_output : {false, true}) {
      AttentionCase shape = small(layout, 200);
      shape.D = fp32_output ? 128 : 64;
      shape.options.num_sinks = layout == WindowLayout::kTerraced ? 4 : 0;
      shape.options.fp32_output = fp32_output;
      const AttentionInputs inputs = make_bfloat16_inputs(shape);
      const AttentionInputs x = inputs.as(at::kBFloat16, at::kFloat, GetParam());
      const AttentionInputs exact = inputs.as(at::kDouble, at::kDouble);
      ASSERT_EQ(cuda::hybrid_backend()->why_not_window(x.q), "");
      const at::Tensor found = cuda::hybrid_backend()->window(x.q, x.k, x.v, shape.options);
      EXPECT_EQ(found.scalar_type(), fp32_output ? at::kFloat : at::kBFloat16);
      const at::Tensor expected = window_attention(exact.q, exact.k, exact.v, shape.options);
      const double largest = expected.abs().max().item<double>();
      EXPECT_LT((found.to(at::kCPU, at::kDouble) - expected).abs().max().item<double>(),
                largest / 128)
          << shape.name();
    }
  }
}

TEST_P(CudaHybrid, SaysInOneSentenceWhatItDoesNotTake) {
  const auto reason = [&](const AttentionCase& shape) {
    const AttentionInputs x = make_bfloat16_inputs(shape).as(shape.dtype, at::kFloat, GetParam());
    return refusal(
        [&] { hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda); });
  };
  AttentionCase shape = small(WindowLayout::kTerraced, 80);
  shape.dtype = at::kFloat;
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("take bfloat16, not Float"));
  shape = small(WindowLayout::kTerraced, 80);
  shape.f = 24;
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("maps of 24 columns with negation"));
  shape = small(WindowLayout::kTerraced, 80);
  shape.options.set_map({.feature_map = FeatureMapKind::kPositiveRandom, .negation = false});
  EXPECT_THAT(reason(shape), ::testing::HasSubstr("no positive random"));
}

TEST_P(CudaHybrid, PropagatesNaNToTheTokensThatSeeIt) {
  const AttentionCase shape = small(WindowLayout::kTerraced, 200);
  for (const int which : {0, 1, 2}) {
    AttentionInputs inputs = make_bfloat16_inputs(shape);
    at::Tensor& value = which == 0 ? inputs.q : which == 1 ? inputs.k : inputs.v;
    value.select(2, 70).fill_(NAN);
    const AttentionInputs x = inputs.as(at::kBFloat16, at::kFloat, GetParam());
    const c10::NoGradGuard no_grad;
    const at::Tensor y =
        hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kCuda).cpu();
    const at::Tensor nan = y.isnan().all(3);
    EXPECT_TRUE(nan.select(2, 70).all().item<bool>())
        << kLeafNames[static_cast<std::size_t>(which)];
    if (which != 0) {
      EXPECT_TRUE(nan.narrow(2, 71, 129).all().item<bool>())
          << kLeafNames[static_cast<std::size_t>(which)];
    }
    EXPECT_FALSE(y.narrow(2, 0, 64).isnan().any().item<bool>())
        << kLeafNames[static_cast<std::size_t>(which)];
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
