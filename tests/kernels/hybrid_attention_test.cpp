// The fused hybrid, and the reference that all backends are held to. The cases of every backend are
// in device_hybrid_test.cpp.
#include "kernels/hybrid_attention.hpp"

#include <cmath>
#include <span>

#include "kernels/cpu/hybrid_attention_cpu.hpp"
#include "kernels/plain/attention.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::differentiate;
using testing::expect_outcome;
using testing::hybrid_outcome;
using testing::kLayouts;
using testing::kLeafNames;
using testing::make_inputs;
using testing::Outcome;
using testing::reference_outcome;

// The plain version is the T x T backend with the same inputs, products in fp32.
void expect_case(const AttentionCase& shape) {
  const AttentionInputs inputs = make_inputs(shape);
  testing::expect_entry_outcome(shape,
                                hybrid_outcome(shape, inputs),
                                testing::plain_hybrid_outcome(shape, inputs),
                                reference_outcome(shape, inputs, at::kDouble));
}

TEST(HybridAttention, EqualsTheReferenceInValueAndEveryGradientAtAnyLength) {
  for (const WindowLayout layout : kLayouts) {
    for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
      AttentionCase shape{.T = T};
      shape.options.window = layout;
      expect_case(shape);
    }
  }
}

TEST(HybridAttention, EqualsTheReferenceOnLongSequences) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::int64_t T = dtype == at::kFloat ? 1025 : 1000;
      AttentionCase shape{.B = 1, .H = 1, .G = 1, .T = T, .D = 64, .f = 32, .dtype = dtype};
      shape.options.window = layout;
      expect_case(shape);
    }
  }
}

template <typename Real>
plain::Rows<const Real> rows_of(const at::Tensor& head) {
  return {std::span(head.const_data_ptr<Real>(), static_cast<std::size_t>(head.numel())),
          static_cast<std::size_t>(head.size(-1))};
}

// One sequence of one head by kernels/plain, whose memory grows with T alone.
template <typename Real>
at::Tensor by_the_plain_header(const AttentionCase& shape, const AttentionInputs& inputs) {
  const at::ScalarType dtype = c10::CppTypeToScalarType<Real>::value;
  const auto head = [&](const at::Tensor& x) { return x[0][0].to(dtype).contiguous(); };
  const auto features =
      [&](const at::Tensor& x, const FeatureMapWeights& map, FeatureMapRole role) {
        return head(apply_feature_map(
            x.to(dtype), {map.layer.to(dtype), {}}, shape.options, shape.H, role));
      };
  const plain::HybridOptions options{
      .window = shape.options.window == WindowLayout::kSliding ? plain::Window::kSliding
                                                               : plain::Window::kTerraced,
      .window_size = static_cast<std::size_t>(shape.options.window_size),
      .num_sinks = static_cast<std::size_t>(shape.options.num_sinks),
      .window_factor = inputs.parameters.window_factors.item<double>()};
  const at::Tensor q = head(inputs.q), k = head(inputs.k), v = head(inputs.v);
  const at::Tensor phi_q = features(inputs.q, inputs.parameters.q, FeatureMapRole::kQuery),
                   phi_k = features(inputs.k, inputs.parameters.k, FeatureMapRole::kKey);
  at::Tensor y = at::empty_like(v);
  plain::hybrid_attention<Real>(
      options,
      rows_of<Real>(q),
      rows_of<Real>(k),
      rows_of<Real>(phi_q),
      rows_of<Real>(phi_k),
      rows_of<Real>(v),
      {std::span(y.mutable_data_ptr<Real>(), static_cast<std::size_t>(y.numel())),
       static_cast<std::size_t>(y.size(-1))});
  return y;
}

TEST(HybridAttention, EqualsThePlainHeaderWhereSixteenThousandTokensWouldFillASquare) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    AttentionCase shape{.B = 1, .H = 1, .G = 1, .T = 16'384, .D = 32, .f = 16};
    shape.options.window = layout;
    shape.options.num_sinks = 4;
    const AttentionInputs inputs = make_inputs(shape);
    for (const Backend backend : {Backend::kAten, Backend::kCpu}) {
      testing::expect_within_twice(
          hybrid_attention(
              inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options, backend)[0][0],
          by_the_plain_header<float>(shape, inputs),
          by_the_plain_header<double>(shape, inputs),
          shape.name() + ", backend " + std::to_string(static_cast<int>(backend)));
    }
  }
}

// The identity's weights are positive only where its inputs are; else Z may vanish.
TEST(HybridAttention, EqualsTheReferenceForTheIdentityOfPositiveInputs) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 70, .f = 0};
    shape.options.set_map({.feature_map = FeatureMapKind::kIdentity, .negation = false});
    shape.options.window_size = 16;
    shape.options.window = layout;
    AttentionInputs inputs = make_inputs(shape);
    inputs.q = inputs.q.abs();
    inputs.k = inputs.k.abs();
    expect_outcome(shape,
                   hybrid_outcome(shape, inputs),
                   reference_outcome(shape, inputs, at::kFloat),
                   reference_outcome(shape, inputs, at::kDouble));
  }
}

// The hybrid with the maximum taken as a constant: what a softmax would allow and this model does
// not.
at::Tensor with_detached_maximum(const AttentionInputs& x, const AttentionCase& shape) {
  const at::Tensor keys = x.k.repeat_interleave(shape.H / shape.G, 1),
                   values = x.v.repeat_interleave(shape.H / shape.G, 1);
  const at::Tensor i = at::arange(shape.T).unsqueeze(1), j = at::arange(shape.T).unsqueeze(0);
  const at::Tensor inside = j.le(i).logical_and(i.sub(j).lt(shape.options.window_size));
  const at::Tensor before = i.sub(j).ge(shape.options.window_size);
  const at::Tensor s =
      (at::matmul(x.q, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(shape.D)))
          .masked_fill(inside.logical_not(), -INFINITY);
  const at::Tensor p = at::sigmoid(x.parameters.window_factors).reshape({-1, 1, 1}) *
                       at::exp(s - s.amax(-1, true).detach());
  const at::Tensor l =
      at::matmul(
          apply_feature_map(x.q, x.parameters.q, shape.options, shape.H, FeatureMapRole::kQuery),
          apply_feature_map(x.k, x.parameters.k, shape.options, shape.H, FeatureMapRole::kKey)
              .transpose(-1, -2))
          .masked_fill(before.logical_not(), 0.0);
  return at::matmul(p + l, values) / (p + l).sum(-1, true);
}

TEST(HybridAttention, DifferentiatesTheMaximum) {
  AttentionCase shape{.B = 1, .T = 150};
  shape.options.window = WindowLayout::kSliding;
  shape.options.window_size = 32;
  const AttentionInputs inputs = make_inputs(shape);
  const Outcome ours = hybrid_outcome(shape, inputs);
  const Outcome detached =
      differentiate([&](const AttentionInputs& x) { return with_detached_maximum(x, shape); },
                    inputs.as(at::kDouble, at::kDouble));
  EXPECT_LT((ours.value - detached.value).abs().max().item<double>(), 1e-5)
      << "the value does not show it";
  for (const std::size_t leaf : {0U, 1U}) {
    const at::Tensor gap = ours.gradients[leaf] - detached.gradients[leaf];
    EXPECT_GT(gap.norm().item<double>(), 0.05 * ours.gradients[leaf].norm().item<double>())
        << "d" << kLeafNames[leaf];
  }
}

TEST(HybridAttention, GradientsOfTheReferenceAreThoseOfFiniteDifferences) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 11, .D = 4, .f = 3, .bias = true};
    shape.options.window = layout;
    shape.options.window_size = 3;
    const AttentionInputs inputs = make_inputs(shape).as(at::kDouble, at::kDouble);
    const auto function = [&](const AttentionInputs& x) {
      return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape.options);
    };
    testing::expect_finite_differences(function, inputs, shape.name());
  }
}

// The backend that processors with AMX run, here through whatever oneDNN has for it.
TEST(HybridAttention, InBfloat16ProductsStaysWithinTwiceThePlainError) {
  for (const WindowLayout layout : kLayouts) {
    AttentionCase shape{.B = 2, .H = 8, .G = 2, .T = 150, .D = 64, .f = 32, .dtype = at::kBFloat16};
    shape.options.window = layout;
    shape.options.fp32_output = true;
    const AttentionInputs inputs = make_inputs(shape);
    cpu::TiledProblem problem = cpu::on_cpu(
        make_hybrid_problem(inputs.q, inputs.k, inputs.v, inputs.parameters, shape.options));
    problem.products = cpu::Products::kBFloat16;
    if (!cpu::runs(problem.products)) {
      GTEST_SKIP() << "this processor has no bf16 products";
    }
    const bool windowed = layout != WindowLayout::kNone;
    const HybridForward forward = cpu::hybrid_forward_cpu(problem, true);
    const HybridGradients gradients = cpu::hybrid_backward_cpu(
        problem, forward, inputs.dy.to(at::kFloat), {true, true, true, true, true, windowed});
    Outcome ours{forward.y.to(at::kDouble),
                 {gradients.q,
                  gradients.k,
                  gradients.v,
                  gradients.map_q.layer,
                  gradients.map_k.layer,
                  gradients.window_factors,
                  {},
                  {}}};
    const Outcome plain = differentiate(
        [&](const AttentionInputs& x) { return testing::plain_bfloat16_hybrid(x, shape.options); },
        inputs.as(at::kBFloat16, at::kFloat));
    expect_outcome(shape, ours, plain, reference_outcome(shape, inputs, at::kDouble));
  }
}

}  // namespace
}  // namespace hedgerow::kernels
