#include "kernels/problem/feature_map.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace hedgerow::kernels {
namespace {

at::Tensor eye(std::int64_t n) { return at::eye(n, at::kDouble); }

TEST(FeatureMapStart, OrthogonalHasOrthonormalColumnsOrRows) {
  const at::Tensor noise = at::randn({3, 16, 8}, at::kDouble);
  const at::Tensor tall = start_feature_map(FeatureMapStart::kOrthogonal, noise).to(at::kDouble);
  EXPECT_LT((at::matmul(tall.transpose(1, 2), tall) - eye(8)).abs().max().item<double>(), 1e-6);
  const at::Tensor wide =
      start_feature_map(FeatureMapStart::kOrthogonal, noise.transpose(1, 2)).to(at::kDouble);
  EXPECT_LT((at::matmul(wide, wide.transpose(1, 2)) - eye(8)).abs().max().item<double>(), 1e-6);
}

// R of the QR has a positive diagonal, which makes the distribution Haar's and the result a
// continuous function of the noise.
TEST(FeatureMapStart, OrthogonalKeepsTheSignOfTheNoise) {
  const at::Tensor noise = at::randn({2, 12, 5}, at::kDouble);
  const at::Tensor q = start_feature_map(FeatureMapStart::kOrthogonal, noise).to(at::kDouble);
  const at::Tensor r = at::matmul(q.transpose(1, 2), noise);
  EXPECT_TRUE(at::diagonal(r, 0, 1, 2).gt(0).all().item<bool>());
  EXPECT_LT(r.tril(-1).abs().max().item<double>(), 1e-6);
}

TEST(FeatureMapStart, HeadsDoNotDependOnEachOther) {
  for (const FeatureMapStart start : {FeatureMapStart::kKaiming, FeatureMapStart::kOrthogonal}) {
    const at::Tensor noise = at::rand({4, 16, 8}, at::kDouble);
    const at::Tensor all = start_feature_map(start, noise);
    EXPECT_TRUE(at::equal(all[2], start_feature_map(start, noise.narrow(0, 2, 1))[0]));
  }
}

TEST(FeatureMapStart, KaimingFillsTheBoundOfTheWholeTensorsFanIn) {
  const at::Tensor noise = at::rand({2, 128, 64}, at::kDouble);
  const at::Tensor start = start_feature_map(FeatureMapStart::kKaiming, noise);
  const double bound = std::sqrt(6.0 / 8192.0);  // 0.02706, LoLCATs' 128 x 64
  EXPECT_LE(start.abs().max().item<double>(), bound + 1e-7);
  EXPECT_GT(start.max().item<double>(), 0.99 * bound);
  EXPECT_LT(start.min().item<double>(), -0.99 * bound);
}

TEST(FeatureMapStart, IdentityPicksTheFirstCoordinates) {
  const at::Tensor start =
      start_feature_map(FeatureMapStart::kIdentity, at::zeros({2, 6, 3}, at::kDouble));
  const at::Tensor x = at::randn({1, 2, 5, 6});
  EXPECT_TRUE(at::equal(at::matmul(x, start), x.narrow(3, 0, 3)));
}

TEST(FeatureMapStart, RefusesOtherNoise) {
  EXPECT_THAT(
      [] {
        start_feature_map(FeatureMapStart::kKaiming, at::zeros({2, 6, 3}));
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("must be [H, D, f] float64 on the CPU")));
}

TEST(FeatureMap, HedgehogSoftmaxHalvesSumToOne) {
  const at::Tensor x = at::randn({2, 2, 7, 8});
  const FeatureMapWeights weights{.layer = at::randn({4, 8, 6}), .bias = at::randn({4, 6})};
  const at::Tensor phi = apply_feature_map(x, weights, {}, 4, FeatureMapRole::kKey);
  ASSERT_EQ(phi.sizes(), (std::vector<std::int64_t>{2, 4, 7, 12}));
  EXPECT_LT((phi.narrow(3, 0, 6).sum(-1) - 1).abs().max().item<double>(), 1e-6);
  EXPECT_LT((phi.narrow(3, 6, 6).sum(-1) - 1).abs().max().item<double>(), 1e-6);
  // Head 3 reads kv head 1.
  const at::Tensor z = at::matmul(x.select(1, 1), weights.layer[3]) + weights.bias[3];
  EXPECT_LT((phi.select(1, 3).narrow(2, 6, 6) - at::softmax(-z, -1)).abs().max().item<double>(),
            1e-6);
}

TEST(FeatureMap, FollowsItsFormulaAndClamp) {
  const at::Tensor x = at::tensor({-100.0F, -1.0F, 0.0F, 2.0F}).reshape({1, 1, 1, 4});
  const auto map = [&](FeatureMapKind kind, bool negation) {
    return apply_feature_map(
               x, {}, {.feature_map = kind, .negation = negation}, 1, FeatureMapRole::kKey)
        .flatten()
        .to(at::kDouble);
  };
  const auto expect = [](const at::Tensor& found, std::vector<double> values) {
    EXPECT_TRUE(at::allclose(found, at::tensor(values), 1e-6, 0.0)) << found << at::tensor(values);
  };
  expect(map(FeatureMapKind::kRelu, true), {1e-12, 1e-12, 1e-12, 2.0});
  expect(map(FeatureMapKind::kT2R, false), {1e-12, 1e-12, 1e-12, 2.0});
  expect(map(FeatureMapKind::kEluPlusOne, false), {1e-12, std::exp(-1.0), 1.0, 3.0});
  expect(map(FeatureMapKind::kProjectedEluPlusOne, false), {1e-12, std::exp(-1.0), 1.0, 3.0});
  expect(map(FeatureMapKind::kExp, false), {1e-12, std::exp(-1.0), 1.0, std::exp(2.0)});
  const FeatureMapOptions spiky{.feature_map = FeatureMapKind::kExp, .temperature = 1.5};
  expect(apply_feature_map(x, {}, spiky, 1, FeatureMapRole::kKey).flatten().to(at::kDouble),
         {1e-12, std::exp(-1.5), 1.0, std::exp(3.0)});
  expect(map(FeatureMapKind::kIdentity, false), {-100.0, -1.0, 0.0, 2.0});
  const double sum = std::exp(-3.0) + std::exp(-2.0) + 1.0;
  expect(map(FeatureMapKind::kHedgehogSoftmax, false),
         {1e-12, std::exp(-3.0) / sum, std::exp(-2.0) / sum, 1.0 / sum});
  expect(map(FeatureMapKind::kHedgehogExp, false), {1e-12, std::exp(-3.0), std::exp(-2.0), 1.0});
  expect(map(FeatureMapKind::kHedgehogExp, true),
         {1e-12, std::exp(-3.0), std::exp(-2.0), 1.0, 1.0, 1e-12, 1e-12, 1e-12});
}

TEST(FeatureMap, NamesWhatDoesNotFit) {
  const auto refuses = [](const at::Tensor& x, const FeatureMapWeights& weights, const char* part) {
    EXPECT_THAT([&] { apply_feature_map(x, weights, {}, 4, FeatureMapRole::kKey); },
                ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(part)));
  };
  const at::Tensor x = at::zeros({1, 2, 5, 8});
  refuses(at::zeros({2, 5, 8}), {}, "x must be [B, heads, T, D], found a tensor of 3 dimensions");
  refuses(at::zeros({1, 3, 5, 8}), {}, "x's heads must divide 4, found 3");
  refuses(at::zeros({1, 0, 5, 8}), {}, "x's heads must divide 4, found 0");
  refuses(x.to(at::kInt), {}, "x must be of a floating dtype, found Int");
  refuses(
      x, {at::zeros({4, 7, 6}), {}}, "the layer must be [H, D, f] = [4, 8, f], found [4, 7, 6]");
  refuses(x, {{}, at::zeros({4, 6})}, "the bias must be [H, f] = [4, 8], found [4, 6]");
}

}  // namespace
}  // namespace hedgerow::kernels
