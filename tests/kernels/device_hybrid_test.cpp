#include <c10/core/GradMode.h>

#include "tests/kernels/device_backends.hpp"

namespace hedgerow::kernels::testing {
namespace {

TEST_P(DeviceHybrid, EqualsTheReferenceInValueAndEveryGradientAtAnyLength) {
  for (const WindowLayout layout : kLayouts) {
    for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200, 1000}) {
      AttentionCase shape{.B = T == 1000 ? 1 : 2, .H = 2, .G = 1, .T = T};
      shape.options.window = layout;
      expect_hybrid(shape, make_inputs(shape));
    }
  }
}

TEST_P(DeviceHybrid, EqualsTheReferenceForHeadDimsFeaturesAndGroups) {
  struct Sizes {
    std::int64_t H, G, D, f;
  };
  std::size_t next = 0;
  for (const Sizes sizes : {Sizes{3, 3, 64, 32},
                            Sizes{3, 1, 64, 64},
                            Sizes{4, 1, 128, 32},
                            Sizes{8, 1, 128, 64},
                            Sizes{6, 2, 24, 8}}) {
    for (const at::ScalarType dtype : kDtypes) {
      AttentionCase shape{
          .B = 1, .H = sizes.H, .G = sizes.G, .T = 200, .D = sizes.D, .f = sizes.f, .dtype = dtype};
      shape.options.window = kLayouts[next++ % 3];
      expect_hybrid(shape, make_inputs(shape));
    }
  }
}

TEST_P(DeviceHybrid, EqualsTheReferenceForEveryMap) {
  for (const FeatureMapRow& row : kFeatureMaps) {
    if (!row.is_activation() || !row.positive) continue;
    for (const bool negation : {false, true}) {
      for (const std::int64_t f : {0, 8}) {
        AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 70, .f = f, .bias = negation};
        shape.options.set_map({.feature_map = row.value,
                               .negation = negation,
                               .temperature = row.temperature ? 1.5 : 1.0});
        shape.options.window_size = 16;
        shape.options.window = negation ? WindowLayout::kSliding : WindowLayout::kTerraced;
        expect_hybrid(shape, make_inputs(shape));
      }
    }
  }
}

// A window of one token makes 301 chunks: what is summed over chunks, in both directions.
TEST_P(DeviceHybrid, EqualsTheReferenceForAnyWindow) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t window : {1, 5, 16, 96, 130}) {
      AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 301};
      shape.options.window = layout;
      shape.options.window_size = window;
      expect_hybrid(shape, make_inputs(shape));
    }
  }
}

TEST_P(DeviceHybrid, GivesNoGradientToWindowFactorsThatNoWindowReads) {
  AttentionCase shape{.T = 80};
  shape.options.window = WindowLayout::kNone;
  AttentionInputs inputs = make_inputs(shape);
  inputs.parameters.window_factors = at::zeros({shape.H});
  const Outcome found = hybrid(shape, inputs);
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    const bool is_read = inputs.leaves()[i].defined() && kLeafNames[i] != "window_factors";
    EXPECT_EQ(found.gradients[i].defined(), is_read) << "d" << kLeafNames[i];
  }
}

TEST_P(DeviceHybrid, HoldsAtExtremeLogits) {
  for (const WindowLayout layout : kLayouts) {
    for (const at::ScalarType dtype : kDtypes) {
      // Scores of standard deviation 36: the largest are beyond 80.
      AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 150, .D = 64, .dtype = dtype, .scale = 6.0};
      shape.options.window = layout;
      shape.options.window_size = 32;
      expect_hybrid(shape, make_inputs(shape));
    }
  }
}

TEST_P(DeviceHybrid, HoldsWithDeadFeatures) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 150, .bias = true};
  shape.options.window_size = 32;
  shape.options.feature_map = FeatureMapKind::kT2R;
  AttentionInputs inputs = make_inputs(shape);
  inputs.parameters.q.bias[0].fill_(-100.0);  // no feature of head 0 fires
  inputs.parameters.k.bias[1].narrow(0, 0, 6).fill_(-100.0);
  expect_hybrid(shape, inputs);
  EXPECT_EQ(hybrid(shape, inputs).gradients[3][0].abs().max().item<double>(), 0.0)
      << "layer_q of the dead head";
}

TEST_P(DeviceHybrid, SharesTheGradientOfTheMaximumAmongTies) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 80};
  shape.options.window_size = 16;
  AttentionInputs inputs = make_inputs(shape);
  for (std::int64_t t = 0; t + 3 < shape.T; t += 4) {  // four equal keys in a row
    inputs.k.narrow(2, t, 4).copy_(inputs.k.narrow(2, t, 1).expand({1, 1, 4, shape.D}).clone());
  }
  inputs.q.narrow(2, 40, 8).zero_();  // and queries that score all keys alike
  expect_hybrid(shape, inputs);
}

TEST_P(DeviceHybrid, IsCausalBitForBit) {
  for (const WindowLayout layout : kLayouts) {
    for (const at::ScalarType dtype : kDtypes) {
      AttentionCase shape{.T = 200, .dtype = dtype};
      shape.options.window = layout;
      const AttentionInputs x = on_device(shape, make_inputs(shape));
      const c10::NoGradGuard no_grad;
      expect_causal(shape,
                    x,
                    {0, 1, 63, 64, 130, 199},
                    [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
                      return hybrid_attention(q, k, v, x.parameters, shape.options, backend());
                    });
    }
  }
}

TEST_P(DeviceHybrid, GivesTheSameBytesFromCallToCallAndWhenOtherGradientsAreNotWanted) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.T = 150, .dtype = at::kBFloat16};
    shape.options.window = layout;
    const AttentionInputs inputs = make_inputs(shape);
    const Outcome one = hybrid(shape, inputs), again = hybrid(shape, inputs);
    EXPECT_TRUE(at::equal(one.value, again.value)) << shape.name();
    AttentionInputs maps = on_device(shape, inputs);
    maps.q = maps.q.detach();
    maps.k = maps.k.detach();
    maps.v = maps.v.detach();
    const at::Tensor y =
        hybrid_attention(maps.q, maps.k, maps.v, maps.parameters, shape.options, backend());
    const std::vector<at::Tensor> leaves = maps.leaves();
    for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
      if (!one.gradients[i].defined()) {
        continue;
      }
      EXPECT_TRUE(at::equal(one.gradients[i], again.gradients[i]))
          << shape.name() << ", d" << kLeafNames[i];
      if (i > 2) {
        const at::Tensor alone = torch::autograd::grad(
            {y}, {leaves[i]}, {maps.dy.to(y.scalar_type())}, /*retain_graph=*/true)[0];
        EXPECT_TRUE(at::equal(one.gradients[i], alone.to(at::kCPU, at::kDouble)))
            << shape.name() << ", d" << kLeafNames[i] << " alone";
      }
    }
  }
}

TEST_P(DeviceHybrid, ReadsStridedInputsAndKeepsFullPrecisionOnRequest) {
  AttentionCase shape{.T = 100, .D = 64, .f = 32, .dtype = at::kBFloat16};
  const AttentionInputs x = on_device(shape, make_inputs(shape));
  const c10::NoGradGuard no_grad;
  const auto strided = [](const at::Tensor& value) {
    return value.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return hybrid_attention(q, k, v, x.parameters, shape.options, backend());
  };
  const at::Tensor y = attend(x.q, x.k, x.v);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(y, attend(strided(x.q), strided(x.k), strided(x.v))));
  shape.options.fp32_output = true;
  const at::Tensor unrounded = attend(x.q, x.k, x.v);
  EXPECT_EQ(unrounded.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::equal(unrounded.to(at::kBFloat16), y));
}

TEST_P(DeviceHybrid, MeasuresTheLinearBranchesShare) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.T = 100};
    shape.options.window = layout;
    shape.options.window_size = 16;
    const AttentionInputs inputs = make_inputs(shape);
    const AttentionInputs x = on_device(shape, inputs), exact = inputs.as(at::kDouble, at::kDouble);
    const at::Tensor found = linear_share(x.q, x.k, x.parameters, shape.options, backend());
    EXPECT_EQ(found.scalar_type(), at::kFloat);
    const at::Tensor expected = linear_share(exact.q, exact.k, exact.parameters, shape.options);
    EXPECT_LT((found.to(at::kCPU, at::kDouble) - expected).abs().max().item<double>(), 1e-6)
        << shape.name();
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
