// Positive random features and Taylor features in every backend: the hybrid, the losses and the
// decode step on any device.
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include "kernels/problem/exponential_maps.hpp"
#include "tests/kernels/device_backends.hpp"

namespace hedgerow::kernels::testing {
namespace {

struct Map {
  FeatureMapOptions options;
  std::int64_t f;  // columns of the layer; 0: none
};

const std::vector<Map>& maps() {
  static const std::vector<Map> kMaps = {
      {{.feature_map = FeatureMapKind::kPositiveRandom}, 8},
      {{.feature_map = FeatureMapKind::kPositiveRandom}, 40},
      {{.feature_map = FeatureMapKind::kTaylor}, 0},
      {{.feature_map = FeatureMapKind::kTaylor}, 5},
  };
  return kMaps;
}

// Eight heads: one's window factor has one number for a gradient, which either side may hit by
// luck.
AttentionCase case_of(const Map& map, WindowLayout layout) {
  AttentionCase shape{.B = 1, .H = 8, .G = 4, .T = 70, .D = 8, .f = map.f, .scale = 0.6};
  shape.options.set_map(map.options);
  shape.options.window = layout;
  shape.options.window_size = 16;
  return shape;
}

TEST_P(DeviceHybrid, EqualsTheReferenceForTheMapsOfTheExponential) {
  for (const Map& map : maps()) {
    for (const WindowLayout layout : kLayouts) {
      for (const at::ScalarType dtype : kDtypes) {
        AttentionCase shape = case_of(map, layout);
        shape.dtype = dtype;
        expect_hybrid(shape, make_inputs(shape));
      }
    }
  }
}

// Head dimensions that do not fill a vector, and Omega as it is drawn: entries of order 1.
TEST_P(DeviceHybrid, EqualsTheReferenceForADrawnOmegaOfAnyHeadDim) {
  for (const std::int64_t D : {24, 64, 128}) {
    AttentionCase shape{.B = 1, .H = 8, .G = 4, .T = 150, .D = D, .f = D + 8};
    shape.options.feature_map = FeatureMapKind::kPositiveRandom;
    shape.options.window_size = 32;
    AttentionInputs inputs = make_inputs(shape);
    const at::Tensor noise =
        at::randn({8, D, D + 8}, at::make_generator<at::CPUGeneratorImpl>(19), at::kDouble);
    for (FeatureMapWeights* weights : {&inputs.parameters.q, &inputs.parameters.k}) {
      redraw_feature_map(*weights, FeatureMapStart::kOrthogonalChi, noise);
    }
    expect_hybrid(shape, inputs);
  }
}

// 2,145 of them, and sums of so many terms.
TEST_P(DeviceHybrid, EqualsTheReferenceForTheTaylorFeaturesOfARealHeadDim) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape = case_of({{.feature_map = FeatureMapKind::kTaylor}, 0}, layout);
    shape.T = 100;
    shape.D = 64;
    expect_hybrid(shape, make_inputs(shape));
  }
}

// |k'|^2 / 2 of 300: a key's features underflow, a query's largest is 1 / sqrt(f) all the same.
TEST_P(DeviceHybrid, OfPositiveRandomFeaturesHoldsAtExtremeLogits) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 150, .D = 64, .f = 64, .scale = 8.0};
    shape.options.feature_map = FeatureMapKind::kPositiveRandom;
    shape.options.window = layout;
    shape.options.window_size = 32;
    AttentionInputs inputs = make_inputs(shape);
    inputs.k.narrow(2, 40, 20).mul_(0.05);  // some keys are short, and have all of the linear mass
    expect_hybrid(shape, inputs);
  }
}

TEST_P(DeviceLoss, OfTheWeightsEqualsTheReferenceForTheMapsOfTheExponential) {
  for (const Map& map : maps()) {
    for (const WindowLayout layout : kLayouts) {
      const AttentionCase shape = case_of(map, layout);
      const AttentionInputs inputs = make_inputs(shape);
      const auto reference = [&](const AttentionInputs& x) {
        return transfer_cross_entropy_reference(
            x.q.detach(), x.k.detach(), x.parameters, shape.options);
      };
      const auto ours = [&](const AttentionInputs& x) {
        return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options, backend());
      };
      if (layout == WindowLayout::kNone && map.f == 0) {
        // Nothing in this student can learn: a value alone.
        const AttentionInputs x = on_device(shape, inputs), y = inputs.as(at::kFloat, at::kFloat);
        EXPECT_NEAR(ours(x).item<double>(), reference(y).item<double>(), 1e-5) << shape.name();
        continue;
      }
      expect_outcome(shape,
                     differentiate(ours, on_device(shape, inputs)),
                     differentiate(reference, inputs.as(at::kFloat, at::kFloat)),
                     differentiate(reference, inputs.as(at::kDouble, at::kDouble)));
    }
  }
}

TEST_P(DeviceDecode, ContinuesThePrefillForTheMapsOfTheExponential) {
  const c10::NoGradGuard no_grad;
  for (const Map& map : maps()) {
    for (const WindowLayout layout : kLayouts) {
      AttentionCase shape = case_of(map, layout);
      shape.T = 43;
      shape.options.window_size = 8;
      const AttentionInputs inputs = make_inputs(shape), x = on_device(shape, inputs);
      const at::Tensor full = hybrid_attention_reference(
          inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options);
      DecodeState state = prefill_state(x.k.narrow(2, 0, 23),
                                        x.v.narrow(2, 0, 23),
                                        at::full({1}, 23, at::kLong),
                                        x.parameters,
                                        shape.options,
                                        backend());
      for (std::int64_t t = 23; t < shape.T; ++t) {
        const at::Tensor y = decode_step(x.q.select(2, t),
                                         x.k.select(2, t),
                                         x.v.select(2, t),
                                         state,
                                         x.parameters,
                                         shape.options,
                                         backend());
        const at::Tensor expected = full.select(2, t);
        EXPECT_LE((y.cpu() - expected).abs().max().item<double>(),
                  1e-5 * std::max(1.0, expected.abs().max().item<double>()))
            << shape.name() << ", token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
