// The ATen backends on CPU tensors: the cases of device_*_test.cpp, and what only a CPU test can
// see.
#include "kernels/aten/hybrid_attention_aten.hpp"
#include "kernels/aten/softmax_attention_aten.hpp"
#include "kernels/aten/transfer_loss_aten.hpp"
#include "tests/kernels/device_backends.hpp"

namespace hedgerow::kernels::testing {
namespace {

HEDGEROW_INSTANTIATE_DEVICE_BACKENDS(AtenOnCpu, Backend::kAten, at::kCPU);

AttentionCase small_case(WindowLayout layout) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 11, .D = 4, .f = 3, .bias = true};
  shape.options.window = layout;
  shape.options.window_size = 3;
  return shape;
}

TEST(AtenBackend, OfTheHybridHaveTheGradientsOfFiniteDifferences) {
  for (const WindowLayout layout : kLayouts) {
    const AttentionCase shape = small_case(layout);
    expect_finite_differences(
        [&](const AttentionInputs& x) {
          return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, Backend::kAten);
        },
        make_inputs(shape).as(at::kDouble, at::kDouble),
        shape.name());
  }
}

TEST(AtenBackend, OfTheCrossEntropyHaveTheGradientsOfFiniteDifferences) {
  for (const WindowLayout layout : kLayouts) {
    const AttentionCase shape = small_case(layout);
    expect_finite_differences(
        [&](const AttentionInputs& x) {
          return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options, Backend::kAten);
        },
        make_inputs(shape).as(at::kDouble, at::kDouble),
        shape.name());
  }
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  EXPECT_TRUE(!found.defined() || at::allclose(found, expected, 1e-5, 1e-6)) << what;
}

void expect_gradients(const HybridGradients& found, const HybridGradients& expected) {
  expect_close(found.q, expected.q, "dq");
  expect_close(found.k, expected.k, "dk");
  expect_close(found.v, expected.v, "dv");
  expect_close(found.map_q.layer, expected.map_q.layer, "dlayer_q");
  expect_close(found.map_k.layer, expected.map_k.layer, "dlayer_k");
  expect_close(found.map_q.bias, expected.map_q.bias, "dbias_q");
  expect_close(found.map_k.bias, expected.map_k.bias, "dbias_k");
  expect_close(found.window_factors, expected.window_factors, "dwindow_factors");
}

// A batch whose temporaries do not fit is walked in parts: sequences, then kv heads of one.
TEST(AtenBackend, OfABatchInPartsGiveWhatTheyGiveAtOnce) {
  AttentionCase shape{.B = 3, .H = 6, .G = 3, .T = 50, .bias = true};
  shape.options.window_size = 8;
  const AttentionInputs x = make_inputs(shape);
  const HybridProblem problem = make_hybrid_problem(x.q, x.k, x.v, x.parameters, shape.options);
  const HybridNeeds all{true, true, true, true, true, true};
  const HybridForward whole = aten::hybrid_forward_aten(problem, true);
  const HybridGradients gradients = aten::hybrid_backward_aten(problem, whole, x.dy, all);
  const ParameterLoss loss = aten::cross_entropy_aten(problem, true);
  // A kv head of a sequence needs 2 heads x 7 chunks x 16 features x 20 columns.
  for (const std::int64_t elements : {1, 10000, 14000}) {
    const HybridForward parts = aten::hybrid_forward_aten(problem, true, elements);
    expect_close(parts.y, whole.y, "y");
    expect_close(parts.denominator, whole.denominator, "denominator");
    expect_close(parts.linear_mass, whole.linear_mass, "linear mass");
    expect_gradients(aten::hybrid_backward_aten(problem, parts, x.dy, all, elements), gradients);
    const ParameterLoss in_parts = aten::cross_entropy_aten(problem, true, elements);
    expect_close(in_parts.loss, loss.loss, "loss");
    expect_gradients(in_parts.gradients, loss.gradients);
  }
}

// Every tensor of another device than the CPU takes this backend. The meta device is always there:
// it computes shapes alone, and throws where a program would wait for a value. (LibTorch has no
// meta backend of the clamp's gradient, hence the maps without one.)
TEST(AtenBackend, AreWhatTheEntriesTakeOnOtherDevicesWithoutWaitingForThem) {
  for (const FeatureMapKind kind :
       {FeatureMapKind::kIdentity, FeatureMapKind::kPositiveRandom, FeatureMapKind::kTaylor}) {
    for (const WindowLayout layout : kLayouts) {
      AttentionCase shape{.T = 150, .D = 32, .dtype = at::kBFloat16};
      shape.options.window = layout;
      shape.options.num_sinks = layout == WindowLayout::kNone ? 0 : 4;
      shape.options.set_map({.feature_map = kind, .negation = false});
      const AttentionInputs x = make_inputs(shape).as(shape.dtype, at::kFloat, at::kMeta);
      const at::Tensor y = hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options);
      EXPECT_EQ(y.sizes(), x.q.sizes());
      const at::Tensor loss =
          transfer_mse(y, x.dy) + transfer_cross_entropy(x.q, x.k, x.parameters, shape.options);
      const std::vector<at::Tensor> gradients = torch::autograd::grad(
          {loss}, {x.q, x.k, x.v, x.parameters.q.layer, x.parameters.k.layer});
      EXPECT_EQ(gradients[0].sizes(), x.q.sizes());
      EXPECT_EQ(aten::softmax_backward_aten(x.q, x.k, x.v, x.dy).q.sizes(), x.q.sizes());
      EXPECT_EQ(linear_share(x.q, x.k, x.parameters, shape.options).numel(), shape.H);
      const std::int64_t features = feature_dim(x.parameters.q, shape.options, shape.D);
      DecodeState state =
          make_decode_state(2, 4, 2, 32, features, shape.dtype, at::kMeta, shape.options);
      const auto token = [](const at::Tensor& value) { return value.detach().select(2, 0); };
      const at::Tensor step =
          decode_step(token(x.q), token(x.k), token(x.v), state, x.parameters, shape.options);
      EXPECT_EQ(step.sizes(), token(x.q).sizes());
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels::testing
