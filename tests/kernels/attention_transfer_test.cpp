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
