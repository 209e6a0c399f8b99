#include "kernels/transfer_loss.hpp"

#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::differentiate;
using testing::make_inputs;
using testing::Outcome;

void expect_case(const AttentionCase& shape) {
  const AttentionInputs inputs = make_inputs(shape);
  const auto reference = [&](const AttentionInputs& x) {
    return transfer_cross_entropy_reference(
        x.q.detach(), x.k.detach(), x.parameters, shape.options);
  };
  const Outcome ours = differentiate(
      [&](const AttentionInputs& x) {
        return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options);
      },
      inputs.as(shape.dtype, at::kFloat));
  const Outcome plain = testing::plain_cross_entropy_outcome(shape, inputs);
  const Outcome exact = differentiate(reference, inputs.as(at::kDouble, at::kDouble));
  testing::expect_entry_outcome(shape, ours, plain, exact);
}

TEST(TransferCrossEntropy, EqualsTheReferenceInValueAndEveryGradient) {
  for (const WindowLayout layout :
       {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
    for (const std::int64_t T : {1, 15, 16, 17, 40, 63, 150}) {
      AttentionCase shape{.T = T};
      shape.options.window = layout;
      shape.options.window_size = 16;
      expect_case(shape);
    }
  }
}

TEST(TransferCrossEntropy, HasNoGradientWhereTheClampActs) {
  // Sharp teachers and students with dead features: many normalised weights lie below the clamp.
  AttentionCase shape{.T = 150, .scale = 4.0};
  shape.options.window_size = 16;
  shape.options.feature_map = FeatureMapKind::kT2R;
  const AttentionInputs inputs = make_inputs(shape);
  expect_case(shape);
  const at::Tensor loss =
      transfer_cross_entropy(inputs.q, inputs.k, inputs.parameters, shape.options);
  EXPECT_GT(loss.item<double>(), 1.0) << "the case is meant to reach the clamp";
}

TEST(TransferCrossEntropy, OfBfloat16InputsEqualsThatOfTheSameValuesInFloat) {
  AttentionCase shape{.H = 8, .G = 2, .T = 100, .D = 64, .f = 32, .dtype = at::kBFloat16};
  expect_case(shape);
}

TEST(TransferCrossEntropy, IsLeastWhereTheStudentEqualsTheTeacher) {
  // T <= w: the student is the teacher, and the loss its entropy.
  AttentionCase shape{.T = 48};
  const AttentionInputs inputs = make_inputs(shape);
  const at::Tensor scores =
      at::matmul(inputs.q, inputs.k.repeat_interleave(2, 1).transpose(-1, -2)) / 4.0;
  const at::Tensor future = at::ones({48, 48}, at::kBool).triu(1);
  const at::Tensor weights = at::softmax(scores.masked_fill(future, -INFINITY), -1);
  const double entropy =
      -(weights * at::log(weights.clamp_min(1e-12))).sum(-1).mean().item<double>();
  const double loss =
      transfer_cross_entropy(inputs.q, inputs.k, inputs.parameters, shape.options).item<double>();
  EXPECT_NEAR(loss, entropy, 1e-5);
}

TEST(TransferCrossEntropy, GradientsAreThoseOfFiniteDifferences) {
  for (const WindowLayout layout :
       {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
    AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 11, .D = 4, .f = 3, .bias = true};
    shape.options.window = layout;
    shape.options.window_size = 3;
    testing::expect_finite_differences(
        [&](const AttentionInputs& x) {
          return transfer_cross_entropy(x.q, x.k, x.parameters, shape.options);
        },
        make_inputs(shape).as(at::kDouble, at::kDouble),
        shape.name());
  }
}

TEST(TransferCrossEntropy, NamesWhatDoesNotFit) {
  const AttentionCase shape;
  const AttentionInputs x = make_inputs(shape);
  const auto refuses = [&](const at::Tensor& q, const at::Tensor& k, const char* part) {
    EXPECT_THAT([&] { transfer_cross_entropy(q, k, x.parameters, shape.options); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(part)));
  };
  refuses(x.q, x.k.narrow(3, 0, 8), "k must have q's batch, tokens and head_dim");
  refuses(x.q, x.k.to(at::kBFloat16), "k must have q's dtype Float, found BFloat16");
  refuses(x.q.narrow(1, 0, 2), x.k, "the query map's layer must be [H, D, f] = [2, 16, f]");
}

TEST(TransferMse, IsTheMeanOverAllElementsWithoutGradientForTheTeacher) {
  const at::Tensor pred = at::tensor({1.0F, 2.0F, 4.0F}).set_requires_grad(true);
  const at::Tensor truth = at::tensor({1.0F, 0.0F, 1.0F}).set_requires_grad(true);
  const at::Tensor loss = transfer_mse(pred, truth);
  EXPECT_NEAR(loss.item<double>(), 13.0 / 3.0, 1e-6);
  const std::vector<at::Tensor> gradients =
      torch::autograd::grad({loss}, {pred, truth}, {}, std::nullopt, false, true);
  EXPECT_TRUE(at::allclose(gradients[0], at::tensor({0.0F, 4.0F / 3.0F, 2.0F})));
  EXPECT_FALSE(gradients[1].defined());
  EXPECT_THAT([&] { transfer_mse(pred, at::zeros({2})); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("y_pred must have y_true's shape [2], found [3]")));
}

TEST(TransferMse, NamesAnotherDtype) {
  const at::Tensor y = at::zeros({3, 4});
  EXPECT_THAT([&] { transfer_mse(y.to(at::kHalf), y); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("y_pred must be float32 or bfloat16, found Half")));
  EXPECT_THAT([&] { transfer_mse(y, y.to(at::kDouble)); },
              ::testing::ThrowsMessage<c10::Error>(
                  ::testing::HasSubstr("y_true must be float32 or bfloat16, found Double")));
}

TEST(TransferMse, WalksAnyLayoutAndDtypeAlike) {
  at::manual_seed(9);
  const at::Tensor pred = at::randn({2, 3, 500, 20}),
                   truth = at::randn({2, 3, 500, 20}).to(at::kBFloat16);
  const auto strided = [](const at::Tensor& x) {
    return x.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const at::Tensor leaf = pred.to(at::kDouble).set_requires_grad(true);
  const at::Tensor exact = at::mse_loss(leaf, truth.to(at::kDouble)) * 1000;
  const at::Tensor expected = torch::autograd::grad({exact}, {leaf})[0];
  for (const at::Tensor& p : {pred, strided(pred)}) {
    for (const at::Tensor& t : {truth, strided(truth), truth.to(at::kFloat)}) {
      const at::Tensor x = p.detach().set_requires_grad(true);
      const at::Tensor loss = transfer_mse(x, t) * 1000;
      EXPECT_NEAR(loss.item<double>(), exact.item<double>(), 1e-6 * exact.item<double>());
      const at::Tensor found = torch::autograd::grad({loss}, {x})[0];
      EXPECT_LT((found - expected).abs().max().item<double>(),
                1e-6 * expected.abs().max().item<double>());
    }
  }
}

}  // namespace
}  // namespace hedgerow::kernels
