#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/tiny_student.hpp"
#include "worker/finetune/token_loss.hpp"
#include "worker/model/layer/frozen_product.hpp"
#include "worker/model/layer/mlp.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {
namespace {

using tests::uniform;

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const double error =
      (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(error, tolerance * (1e-6 + expected.abs().max().item<double>()));
}

// bf16 results are rounded once: half a unit of its 8 bits, relative to the largest value.
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 1.0 / 256; }

class LayerGradients : public testing::TestWithParam<at::ScalarType> {};

TEST_P(LayerGradients, RmsNormIsTheGradientOfThePlainFormPlusResidualAndLowRank) {
  const at::Tensor x = uniform({2, 5, 37}, 2.0, 10).to(GetParam()).requires_grad_(true);
  const at::Tensor weight = uniform({37}, 1.0, 11);
  const at::Tensor dy = uniform({2, 5, 37}, 1.0, 12).to(GetParam());
  const at::Tensor residual = uniform({2, 5, 37}, 1.0, 13).to(GetParam());
  const at::Tensor low_rank = uniform({10, 37}, 1.0, 14);
  const at::Tensor y = plain_rms_norm(x.to(at::kFloat), weight, 1e-5);
  const at::Tensor total = dy.to(at::kFloat) + low_rank.view({2, 5, 37});
  const auto expected =
      torch::autograd::grad({y}, {x}, {total})[0].to(at::kFloat) + residual.to(at::kFloat);
  expect_close(rms_norm_backward(residual, dy, low_rank, x.detach(), weight, 1e-5),
               expected,
               tolerance(GetParam()));
}

TEST_P(LayerGradients, SwigluIsTheGradientOfThePlainForm) {
  const at::Tensor x =
      uniform({2, 5, 46}, 6.0, 20).to(GetParam()).to(at::kFloat).requires_grad_(true);
  const at::Tensor dy = uniform({2, 5, 23}, 1.0, 21).to(GetParam());
  const auto expected = torch::autograd::grad({plain_swiglu(x)}, {x}, {dy.to(at::kFloat)})[0];
  expect_close(swiglu_backward(dy, x.detach().to(GetParam())), expected, tolerance(GetParam()));
}

TEST_P(LayerGradients, SplitHeadsIsTheGradientOfThePlainFormWithNormsOfAHeadOfAllHeadsOrWithout) {
  constexpr int kHeads = 4, kKvHeads = 2, kDim = 8, kTokens = 7;
  storage::ModelConfig config;
  config.head_dim = kDim;
  const RopeTable rope = make_rope_table(config, kTokens, at::kCPU);
  for (const auto& [q_width, k_width] :
       {std::pair{0, 0}, {kDim, kDim}, {kHeads * kDim, kKvHeads * kDim}}) {
    const bool with_norms = q_width > 0;
    HeadNorms norms;
    if (with_norms) norms = {uniform({q_width}, 1.0, 30), uniform({k_width}, 1.0, 31), 1e-6};
    const at::Tensor qkv = uniform({3, kTokens, (kHeads + 2 * kKvHeads) * kDim}, 1.0, 32)
                               .to(GetParam())
                               .to(at::kFloat)
                               .requires_grad_(true);
    const Qkv heads = plain_split_heads(qkv, kHeads, kKvHeads, rope, norms);
    const Qkv gradient{uniform({3, kHeads, kTokens, kDim}, 1.0, 33).to(GetParam()),
                       uniform({3, kKvHeads, kTokens, kDim}, 1.0, 34).to(GetParam()),
                       uniform({3, kKvHeads, kTokens, kDim}, 1.0, 35).to(GetParam())};
    const auto expected = torch::autograd::grad(
        {heads.q, heads.k, heads.v},
        {qkv},
        {gradient.q.to(at::kFloat), gradient.k.to(at::kFloat), gradient.v.to(at::kFloat)})[0];
    const at::Tensor seen = with_norms ? qkv.detach().to(GetParam()) : at::Tensor();
    expect_close(
        split_heads_backward(gradient, seen, rope, norms), expected, 2 * tolerance(GetParam()));
  }
}

TEST_P(LayerGradients, FrozenProductGoesBothWays) {
  const at::Tensor weight = uniform({24, 40}, 1.0, 40).to(GetParam());
  const at::Tensor bias = uniform({24}, 1.0, 41).to(GetParam());
  FrozenProduct product(weight, bias);
  product.pack_with_transpose(16);
  const at::Tensor wide = weight.to(at::kFloat);
  for (const std::int64_t rows : {16, 9}) {
    const at::Tensor x = uniform({rows, 40}, 1.0, 42).to(GetParam());
    const at::Tensor dy = uniform({rows, 24}, 1.0, 43).to(GetParam());
    expect_close(product.forward(x),
                 at::linear(x.to(at::kFloat), wide, bias.to(at::kFloat)),
                 tolerance(GetParam()));
    expect_close(product.backward(dy), at::mm(dy.to(at::kFloat), wide), tolerance(GetParam()));
  }
}

TEST_P(LayerGradients, CrossEntropyIsThatOfTheWholeRowAndItsGradient) {
  const at::Tensor logits = uniform({7, 101}, 9.0, 50).to(GetParam());
  const at::Tensor tokens = at::tensor({0, 100, 3, 96, 95, 17, 17}, at::kLong);
  const at::Tensor wide = logits.to(at::kFloat).requires_grad_(true);
  const at::Tensor loss = at::cross_entropy_loss(wide, tokens, {}, at::Reduction::Sum);
  const auto expected = torch::autograd::grad({loss * 0.25}, {wide})[0];
  const CrossEntropy found = cross_entropy(logits, tokens, 0.25, true);
  EXPECT_NEAR(found.loss_sum, loss.item<double>(), 1e-5 * loss.item<double>());
  expect_close(found.gradient, expected, tolerance(GetParam()));
  EXPECT_FALSE(cross_entropy(logits, tokens, 0.25, false).gradient.defined());
}

TEST_P(LayerGradients, TeacherLossIsItsDefinitionOverTheTopTokensAndTheRestAndItsGradient) {
  constexpr std::int64_t kVocab = 101;
  constexpr int kTop = 7;
  const at::Tensor logits = uniform({5, kVocab}, 9.0, 55).to(GetParam());
  const at::Tensor of_teacher = uniform({5, kVocab}, 9.0, 56);
  const TopLogits teacher = top_logits(of_teacher, kTop);
  const at::Tensor ids = teacher.ids.to(at::kLong);
  // Tokens among the teacher's top and outside.
  const at::Tensor tokens = at::tensor({ids[0][0].item<std::int64_t>(),
                                        ids[1][6].item<std::int64_t>(),
                                        std::int64_t{3},
                                        std::int64_t{100},
                                        ids[4][2].item<std::int64_t>()},
                                       at::kLong);
  const LossWeights weights{0.7, 1.9};
  const at::Tensor wide = logits.to(at::kFloat).requires_grad_(true);
  const at::Tensor ce = at::cross_entropy_loss(wide, tokens, {}, at::Reduction::Sum);
  const at::Tensor log_q = at::log_softmax(wide, -1);
  const at::Tensor log_p = at::log_softmax(of_teacher, -1);
  const at::Tensor is_rest = at::ones_like(wide).scatter(1, ids, 0.0);
  const at::Tensor p_rest = (log_p.exp() * is_rest).sum(-1);
  const at::Tensor q_rest = (log_q.exp() * is_rest).sum(-1);
  const at::Tensor kl = (log_p.exp() * (log_p - log_q) * (1.0 - is_rest)).sum() +
                        (p_rest * (p_rest.log() - q_rest.log())).sum();
  const auto expected =
      torch::autograd::grad({(weights.ce * ce + weights.kl * kl) * 0.25}, {wide})[0];
  for (const auto& loss : {teacher_loss(logits, tokens, teacher, weights, 0.25, true),
                           plain_teacher_loss(logits, tokens, teacher, weights, 0.25, true)}) {
    EXPECT_NEAR(loss.ce_sum, ce.item<double>(), 1e-5 * ce.item<double>());
    EXPECT_NEAR(loss.kl_sum, kl.item<double>(), 1e-5 * kl.item<double>());
    expect_close(loss.gradient, expected, tolerance(GetParam()));
  }
  EXPECT_FALSE(teacher_loss(logits, tokens, teacher, weights, 1.0, false).gradient.defined());
}

TEST_P(LayerGradients, TheKlOfATeacherWithoutARestIsThatOfItsWholeVocabulary) {
  const at::Tensor logits = uniform({4, 40}, 5.0, 57).to(GetParam());
  const at::Tensor of_teacher = uniform({4, 40}, 5.0, 58);
  const TopLogits teacher = top_logits(of_teacher, 40);
  const at::Tensor log_p = at::log_softmax(of_teacher, -1);
  const at::Tensor log_q = at::log_softmax(logits.to(at::kFloat), -1);
  const double kl = (log_p.exp() * (log_p - log_q)).sum().item<double>();
  const at::Tensor tokens = at::zeros({4}, at::kLong);
  for (const auto& loss : {teacher_loss(logits, tokens, teacher, {0.0, 1.0}, 1.0, true),
                           plain_teacher_loss(logits, tokens, teacher, {0.0, 1.0}, 1.0, true)}) {
    EXPECT_NEAR(loss.kl_sum, kl, 1e-4 * kl);
    expect_close(loss.gradient, log_q.exp() - log_p.exp(), 2 * tolerance(GetParam()));
  }
}

TEST_P(LayerGradients, AddScaledTouchesItsColumnsOnly) {
  const at::Tensor y = uniform({5, 40}, 1.0, 60).to(GetParam());
  const at::Tensor update = uniform({5, 17}, 1.0, 61);
  const at::Tensor expected = y.to(at::kFloat, false, true);
  expected.narrow(1, 9, 17).add_(update, 2.0);
  const at::Tensor found = y.clone();
  add_scaled(found, 9, update, 2.0);
  expect_close(found, expected, tolerance(GetParam()));
  EXPECT_TRUE(at::equal(found.narrow(1, 0, 9), y.narrow(1, 0, 9)));
  EXPECT_TRUE(at::equal(found.narrow(1, 26, 14), y.narrow(1, 26, 14)));
}

TEST_P(LayerGradients, TheFastFormsEqualThePlainOnes) {
  const at::Tensor x = uniform({3, 4, 50}, 2.0, 70).to(GetParam());
  const at::Tensor dy = uniform({3, 4, 50}, 1.0, 71).to(GetParam());
  const at::Tensor weight = uniform({50}, 1.0, 72);
  expect_close(rms_norm_backward(dy, dy, {}, x, weight, 1e-5),
               plain_rms_norm_backward(dy, dy, {}, x, weight, 1e-5),
               2 * tolerance(GetParam()));
  const at::Tensor dact = uniform({3, 4, 25}, 1.0, 73).to(GetParam());
  expect_close(swiglu_backward(dact, x), plain_swiglu_backward(dact, x), 2 * tolerance(GetParam()));
  const at::Tensor tokens = at::arange(12, at::kLong);
  expect_close(cross_entropy(x.view({12, 50}), tokens, 1.0, true).gradient,
               plain_cross_entropy(x.view({12, 50}), tokens, 1.0, true).gradient,
               2 * tolerance(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         LayerGradients,
                         testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& dtype) { return std::string(toString(dtype.param)); });

}  // namespace
}  // namespace hedgerow::worker
