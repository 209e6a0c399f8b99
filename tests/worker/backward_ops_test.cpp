#include "worker/finetune/backward_ops.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/tiny_student.hpp"
#include "worker/finetune/frozen_product.hpp"
#include "worker/model/decoder.hpp"

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

class BackwardOps : public testing::TestWithParam<at::ScalarType> {};

TEST_P(BackwardOps, RmsNormIsTheGradientOfThePlainFormPlusResidualAndLowRank) {
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

TEST_P(BackwardOps, SwigluIsTheGradientOfThePlainForm) {
  const at::Tensor x =
      uniform({2, 5, 46}, 6.0, 20).to(GetParam()).to(at::kFloat).requires_grad_(true);
  const at::Tensor dy = uniform({2, 5, 23}, 1.0, 21).to(GetParam());
  const auto expected = torch::autograd::grad({plain_swiglu(x)}, {x}, {dy.to(at::kFloat)})[0];
  expect_close(swiglu_backward(dy, x.detach().to(GetParam())), expected, tolerance(GetParam()));
}

TEST_P(BackwardOps, SplitHeadsIsTheGradientOfThePlainFormWithAndWithoutHeadNorms) {
  constexpr int kHeads = 4, kKvHeads = 2, kDim = 8, kTokens = 7;
  storage::ModelConfig config;
  config.head_dim = kDim;
  const RopeTable rope = make_rope_table(config, kTokens, at::kCPU);
  for (const bool with_norms : {false, true}) {
    HeadNorms norms;
    if (with_norms) norms = {uniform({kDim}, 1.0, 30), uniform({kDim}, 1.0, 31), 1e-6};
    const at::Tensor qkv = uniform({3, kTokens, (kHeads + 2 * kKvHeads) * kDim}, 1.0, 32)
                               .to(GetParam())
                               .to(at::kFloat)
                               .requires_grad_(true);
    const Qkv heads = plain_split_heads(qkv, kHeads, kKvHeads, rope.cos, rope.sin, norms);
    const Qkv gradient{uniform({3, kHeads, kTokens, kDim}, 1.0, 33).to(GetParam()),
                       uniform({3, kKvHeads, kTokens, kDim}, 1.0, 34).to(GetParam()),
                       uniform({3, kKvHeads, kTokens, kDim}, 1.0, 35).to(GetParam())};
    const auto expected = torch::autograd::grad(
        {heads.q, heads.k, heads.v},
        {qkv},
        {gradient.q.to(at::kFloat), gradient.k.to(at::kFloat), gradient.v.to(at::kFloat)})[0];
    const at::Tensor seen = with_norms ? qkv.detach().to(GetParam()) : at::Tensor();
    expect_close(split_heads_backward(gradient, seen, rope.cos, rope.sin, norms),
                 expected,
                 2 * tolerance(GetParam()));
  }
}

TEST_P(BackwardOps, FrozenProductGoesBothWays) {
  const at::Tensor weight = uniform({24, 40}, 1.0, 40).to(GetParam());
  const at::Tensor bias = uniform({24}, 1.0, 41).to(GetParam());
  const FrozenProduct product(weight, bias, 16);
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

INSTANTIATE_TEST_SUITE_P(Dtypes,
                         BackwardOps,
                         testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& dtype) { return std::string(toString(dtype.param)); });

}  // namespace
}  // namespace hedgerow::worker
