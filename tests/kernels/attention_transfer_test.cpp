#include "kernels/attention_transfer.hpp"

#include "kernels/reference.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::differentiate;
using testing::make_inputs;
using testing::Outcome;

TEST(AttentionTransfer, GivesTheTeachersBytesOfEachSequenceAlone) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const AttentionCase shape{.B = 3, .T = 150, .D = 32, .dtype = dtype};
    const AttentionInputs x = make_inputs(shape).as(dtype, at::kFloat);
    const at::Tensor y = attention_transfer(x.q, x.k, x.v, x.parameters, shape.options).y_true;
    EXPECT_FALSE(y.requires_grad());
    for (std::int64_t b = 0; b < shape.B; ++b) {
      const auto row = [b](const at::Tensor& value) { return value.detach().narrow(0, b, 1); };
      EXPECT_TRUE(at::equal(row(y), softmax_attention(row(x.q), row(x.k), row(x.v))))
          << shape.name() << ", sequence " << b;
    }
  }
}

TEST(AttentionTransfer, HasTheLossAndTheMapsGradientsOfItsPartsAndNoneForTheInputs) {
  AttentionCase shape{.B = 2, .T = 150, .bias = true};
  shape.options.window_size = 16;
  const AttentionInputs inputs = make_inputs(shape);
  const Outcome ours = differentiate(
      [&](const AttentionInputs& x) {
        return attention_transfer(x.q, x.k, x.v, x.parameters, shape.options).loss;
      },
      inputs.as(at::kFloat, at::kFloat));
  HybridOptions options = shape.options;
  options.fp32_output = true;
  const Outcome parts = differentiate(
      [&](const AttentionInputs& x) {
        return transfer_mse(hybrid_attention(x.q, x.k, x.v, x.parameters, options),
                            softmax_attention(x.q, x.k, x.v));
      },
      inputs.as(at::kFloat, at::kFloat));
  EXPECT_NEAR(ours.value.item<double>(), parts.value.item<double>(), 1e-6);
  for (std::size_t i = 0; i < testing::kLeafNames.size(); ++i) {
    if (i < 3) {
      EXPECT_FALSE(ours.gradients[i].defined()) << testing::kLeafNames[i];
    } else {
      EXPECT_LT((ours.gradients[i] - parts.gradients[i]).abs().max().item<double>(),
                1e-5 * parts.gradients[i].abs().max().item<double>())
          << testing::kLeafNames[i];
    }
  }
}

// Both errors with T x T tensors and ATen's autograd, in the inputs' precision.
at::Tensor loss_with_linear_term(const AttentionInputs& x,
                                 const HybridOptions& options,
                                 double linear_factor) {
  const auto [window, linear, denominator] =
      hybrid_weights_reference(x.q.detach(), x.k.detach(), {}, x.parameters, options);
  const std::int64_t group = x.q.size(1) / x.k.size(1), T = x.q.size(2);
  const at::Tensor q = x.q.detach().to(linear.scalar_type());
  const auto heads = [&](const at::Tensor& values) {
    return values.detach().to(linear.scalar_type()).repeat_interleave(group, 1);
  };
  const at::Tensor v = heads(x.v);
  const at::Tensor scores =
      at::matmul(q, heads(x.k).transpose(-1, -2)) / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor later = at::ones({T, T}, at::kBool).triu(1);
  const at::Tensor is_linear = linear.detach().ne(0);
  const at::Tensor truth = at::matmul(at::softmax(scores.masked_fill(later, -INFINITY), -1), v);
  const at::Tensor y = at::matmul(window + linear, v) / denominator;
  at::Tensor loss = (y - truth).square().mean();
  const at::Tensor rows = is_linear.any(-1, true);
  if (!rows.any().item<bool>()) return loss;
  const at::Tensor outside = at::matmul(at::softmax(scores.masked_fill(~is_linear, -1e30), -1), v);
  const at::Tensor y_linear = at::matmul(linear, v) / linear.sum(-1, true).clamp_min(1e-30);
  const at::Tensor squared = ((y_linear - outside).square() * rows).sum();
  return loss +
         squared / static_cast<double>(rows.sum().item<std::int64_t>() * q.size(3)) * linear_factor;
}

TEST(AttentionTransfer, WithALinearTermEqualsTheReferenceInLossAndGradients) {
  constexpr double kFactor = 0.3;
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    for (const std::int64_t T : {1, 16, 17, 33, 70, 1100}) {
      AttentionCase shape{.B = T == 1100 ? 1 : 2, .T = T, .bias = true};
      shape.shares_key_maps = T % 2 == 0;
      shape.options.layout = layout;
      shape.options.window_size = 16;
      shape.options.num_sinks = T == 70 ? 0 : 3;
      shape.options.linear_cap = T == 1100 ? 100 : 0;
      const AttentionInputs inputs = make_inputs(shape);
      const auto ours = [&](const AttentionInputs& x) {
        return attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, kFactor).loss;
      };
      const auto reference = [&](const AttentionInputs& x) {
        return loss_with_linear_term(x, shape.options, kFactor);
      };
      const Outcome exact = differentiate(reference, inputs.as(at::kDouble, at::kDouble));
      const Outcome plain = differentiate(reference, inputs.as(at::kFloat, at::kFloat));
      testing::expect_entry_outcome(
          shape, differentiate(ours, inputs.as(at::kFloat, at::kFloat)), plain, exact);
      const Outcome aten = differentiate(ours, inputs.as(at::kDouble, at::kDouble));
      EXPECT_NEAR(aten.value.item<double>(), exact.value.item<double>(), 1e-9) << shape.name();
      for (std::size_t i = 3; i < testing::kLeafNames.size(); ++i) {
        if (!exact.gradients[i].defined()) continue;
        EXPECT_TRUE(at::allclose(aten.gradients[i], exact.gradients[i], 1e-6, 1e-9))
            << shape.name() << ", " << testing::kLeafNames[i];
      }
    }
  }
}

TEST(AttentionTransfer, RefusesALinearTermWithoutAWindow) {
  AttentionCase shape;
  shape.options.layout = WindowLayout::kNone;
  const AttentionInputs x = make_inputs(shape);
  EXPECT_THROW(attention_transfer(x.q, x.k, x.v, x.parameters, shape.options, 0.3), c10::Error);
}

TEST(AttentionTransfer, IsDifferentiatedAsFiniteDifferencesSay) {
  AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 40, .D = 8, .f = 4, .dtype = at::kDouble};
  shape.options.window_size = 8;
  testing::expect_finite_differences(
      [&](const AttentionInputs& x) {
        return attention_transfer(x.q, x.k, x.v, x.parameters, shape.options).loss;
      },
      make_inputs(shape).as(at::kDouble, at::kDouble),
      shape.name());
}

}  // namespace
}  // namespace hedgerow::kernels
