// What positive random features and Taylor features promise: an unbiased estimate with a known
// variance, and the polynomial of the score.
#include "kernels/problem/exponential_maps.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/decode.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

at::Tensor normal(at::IntArrayRef sizes, std::uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), at::kDouble);
}

at::Tensor features(const at::Tensor& x,
                    const FeatureMapWeights& weights,
                    const FeatureMapOptions& options,
                    FeatureMapRole role = FeatureMapRole::kKey) {
  const std::int64_t heads = weights.layer.defined() ? weights.layer.size(0) : x.size(1);
  return apply_feature_map(x, weights, options, heads, role);
}

constexpr FeatureMapOptions kRandom{.feature_map = FeatureMapKind::kPositiveRandom};
constexpr FeatureMapOptions kSeries{.feature_map = FeatureMapKind::kTaylor};

struct Estimate {
  double mean, variance;  // of phi(q).phi(k) / exp(q'.k') over the draws
};

// q' and k' with |q' + k'|^2 = size; one head a draw. The key's role on both sides: a query's would
// take its own scale away.
Estimate estimate_of(FeatureMapStart start, double size, std::int64_t m, std::int64_t draws) {
  const std::int64_t D = 16;
  at::Tensor q = normal({D}, 3), k = normal({D}, 4);
  const double stretch = std::sqrt(size) / (q + k).norm().item<double>();
  q = q * stretch;
  k = k * stretch;
  const double exact = std::exp(at::dot(q, k).item<double>());
  const double unscaled = std::pow(static_cast<double>(D), 0.25);
  const FeatureMapWeights weights{.layer = start_feature_map(start, normal({draws, D, m}, 5)),
                                  .bias = {}};
  const auto map = [&](const at::Tensor& x) {
    return features((x * unscaled).reshape({1, 1, 1, D}), weights, kRandom);
  };
  const at::Tensor ratio = (map(q) * map(k)).sum(-1).flatten() / exact;
  return {ratio.mean().item<double>(), ratio.var().item<double>()};
}

TEST(PositiveRandomFeatures, EstimateTheExponentialWithoutBiasAndWithTheLawsVariance) {
  constexpr std::int64_t kDraws = 20000, kFeatures = 16;
  for (const double size : {0.5, 1.0}) {
    const double law = (std::exp(size) - 1) / kFeatures;
    const Estimate iid = estimate_of(FeatureMapStart::kGaussian, size, kFeatures, kDraws);
    EXPECT_NEAR(iid.variance, law, 0.1 * law) << "|q + k|^2 = " << size;
    const Estimate blocks = estimate_of(FeatureMapStart::kOrthogonalChi, size, kFeatures, kDraws);
    EXPECT_LE(blocks.variance, iid.variance) << "|q + k|^2 = " << size;
    for (const Estimate& found : {iid, blocks}) {
      EXPECT_LT(std::abs(found.mean - 1), 3 * std::sqrt(found.variance / kDraws))
          << "|q + k|^2 = " << size;
    }
  }
}

TEST(PositiveRandomFeatures, OfAQueryAreThoseOfAKeyUpToItsScaleWithALargestOfOneOverRootM) {
  const at::Tensor x = normal({2, 1, 5, 12}, 6);
  const FeatureMapWeights weights{.layer = normal({3, 12, 8}, 7), .bias = {}};
  const at::Tensor key = features(x, weights, kRandom),
                   query = features(x, weights, kRandom, FeatureMapRole::kQuery);
  const at::Tensor expected = key / key.amax(-1, true) / std::sqrt(8.0);
  EXPECT_LT((query - expected).abs().max().item<double>(), 1e-12);
}

// A key of length 12 has features of e^-50: the clamp of the learned maps would make it the
// heaviest key of all.
TEST(PositiveRandomFeatures, OfALongKeyAreNotClamped) {
  const at::Tensor x = at::full({1, 1, 1, 16}, 5.0);
  const FeatureMapWeights weights{.layer = at::zeros({1, 16, 4}), .bias = {}};
  EXPECT_NEAR(
      features(x, weights, kRandom).max().item<double>(), std::exp(-50.0) / 2, 1e-6 * 1e-22);
}

TEST(FeatureMapStart, OrthogonalChiHasHaarBlocksWithTheLengthsOfTheNoise) {
  const std::int64_t D = 6, m = 15;  // two whole blocks and half of one
  const at::Tensor noise = normal({2, D, m}, 8);
  const at::Tensor omega =
      start_feature_map(FeatureMapStart::kOrthogonalChi, noise).to(at::kDouble);
  const at::Tensor lengths = omega.norm(2, {1}, true);
  EXPECT_LT((lengths - noise.norm(2, {1}, true)).abs().max().item<double>(), 1e-5);
  for (std::int64_t first = 0; first < m; first += D) {
    const std::int64_t count = std::min(D, m - first);
    const at::Tensor q = (omega / lengths).narrow(2, first, count);
    const at::Tensor identity = at::eye(count, at::kDouble);
    EXPECT_LT((at::matmul(q.transpose(1, 2), q) - identity).abs().max().item<double>(), 1e-6);
    // R of the block's QR: triangular, and positive on its diagonal, which makes Q Haar's.
    const at::Tensor r = at::matmul(q.transpose(1, 2), noise.narrow(2, first, count));
    EXPECT_TRUE(at::diagonal(r, 0, 1, 2).gt(0).all().item<bool>());
    EXPECT_LT(r.tril(-1).abs().max().item<double>(), 1e-5);
  }
}

// The squares of chi_D have mean D and variance 2 D; a Haar direction has no preferred sign.
TEST(FeatureMapStart, OrthogonalChiHasRadiiOfChiAndSignsWithoutPreference) {
  const std::int64_t D = 8, draws = 20000;
  const at::Tensor omega =
      start_feature_map(FeatureMapStart::kOrthogonalChi, normal({draws, D, D}, 9)).to(at::kDouble);
  const at::Tensor squares = omega.square().sum(1).flatten();
  const double count = static_cast<double>(squares.numel());
  EXPECT_NEAR(squares.mean().item<double>(), D, 4 * std::sqrt(2.0 * D / count));
  EXPECT_NEAR(squares.var().item<double>(), 2.0 * D, 0.05 * 2.0 * D);
  const at::Tensor positive = omega.gt(0).to(at::kDouble).mean(0);  // of each entry
  EXPECT_LT((positive - 0.5).abs().max().item<double>(), 4 * 0.5 / std::sqrt(double(draws)));
}

TEST(FeatureMapStart, GaussianIsTheNoiseAndEveryStartAFunctionOfIt) {
  const at::Tensor noise = normal({2, 6, 15}, 10);
  EXPECT_TRUE(
      at::equal(start_feature_map(FeatureMapStart::kGaussian, noise), noise.to(at::kFloat)));
  for (const auto start : {FeatureMapStart::kGaussian, FeatureMapStart::kOrthogonalChi}) {
    EXPECT_TRUE(
        at::equal(start_feature_map(start, noise), start_feature_map(start, noise.clone())));
    EXPECT_TRUE(at::equal(start_feature_map(start, noise)[1],
                          start_feature_map(start, noise.narrow(0, 1, 1))[0]));
  }
}

TEST(FeatureMapRedraw, ReplacesOmegaInPlaceAndRefusesNoiseOfAnotherShape) {
  const FeatureMapWeights weights{.layer = at::zeros({2, 6, 4}).set_requires_grad(true),
                                  .bias = {}};
  const at::Tensor held = weights.layer, noise = normal({2, 6, 4}, 11);
  redraw_feature_map(weights, FeatureMapStart::kOrthogonalChi, noise);
  EXPECT_TRUE(at::equal(held, start_feature_map(FeatureMapStart::kOrthogonalChi, noise)));
  EXPECT_THAT(
      [&] {
        redraw_feature_map(weights, FeatureMapStart::kGaussian, normal({2, 6, 5}, 11));
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("noise must have the layer's shape [2, 6, 4], found [2, 6, 5]")));
}

TEST(TaylorFeatures, AreAsManyAsThereAreMonomials) {
  for (const std::int64_t d : {1, 2, 5, 16}) {
    const std::int64_t expected = 1 + d + d * (d + 1) / 2;
    EXPECT_EQ(feature_dim({}, kSeries, d), expected);
    EXPECT_EQ(features(at::zeros({1, 1, 1, d}), {}, kSeries).size(3), expected) << d;
  }
  EXPECT_EQ(num_monomials(64), 2145);
}

TEST(TaylorFeatures, MultiplyToThePolynomialOfTheScore) {
  const std::int64_t D = 7;
  const at::Tensor q = normal({2, 3, 9, D}, 12) * 2, k = normal({2, 3, 9, D}, 13) * 2;
  const at::Tensor s = at::matmul(q, k.transpose(-1, -2)) / std::sqrt(double(D));
  const at::Tensor found =
      at::matmul(features(q, {}, kSeries), features(k, {}, kSeries).transpose(-1, -2));
  EXPECT_LT((found - (1 + s + s * s / 2)).abs().max().item<double>(), 1e-10);
}

TEST(ExponentialMaps, NameWhatDoesNotFitTheirKind) {
  const AttentionCase shape;
  const AttentionInputs x = make_inputs(shape);
  const auto refusal = [&](const FeatureMapOptions& map, const FeatureMapWeights& weights) {
    HybridOptions options = shape.options;
    options.set_map(map);
    HybridParameters parameters = x.parameters;
    parameters.k = weights;
    if (map.feature_map == FeatureMapKind::kTaylor) {
      parameters.q = weights;
    }
    try {
      hybrid_attention(x.q, x.k, x.v, parameters, options);
    } catch (const c10::Error& error) {
      return std::string(error.what_without_backtrace());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(kRandom, {}),
              ::testing::HasSubstr("the key map must have a layer, its Omega, to be a positive "
                                   "random map, found none"));
  EXPECT_THAT(refusal(kRandom, {at::zeros({4, 16, 8}), at::zeros({4, 8})}),
              ::testing::HasSubstr("the key map must have no bias"));
  EXPECT_THAT(refusal(kSeries, {at::zeros({4, 16, 8}), at::zeros({4, 8})}),
              ::testing::HasSubstr("the query map must have no bias"));
  EXPECT_EQ(refusal(kSeries, {}), "accepted");
}

// The shift of a query by its largest exponent is part of what is differentiated.
TEST(ExponentialMaps, HaveTheGradientsOfFiniteDifferencesInTheReferenceAndTheAtenBackend) {
  for (const FeatureMapOptions& map : {kRandom, kSeries}) {
    for (const WindowLayout layout :
         {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
      AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 11, .D = 4, .f = 3, .scale = 0.5};
      shape.options.set_map(map);
      shape.options.window = layout;
      shape.options.window_size = 3;
      const AttentionInputs inputs = make_inputs(shape).as(at::kDouble, at::kDouble);
      for (const Backend backend : {Backend::kAuto, Backend::kAten}) {
        testing::expect_finite_differences(
            [&](const AttentionInputs& x) {
              return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options, backend);
            },
            inputs,
            shape.name());
      }
    }
  }
}

// One causal sum in three ways: quadratic, the hybrid without a window, and a token at a time.
TEST(ExponentialMaps, GiveOneCausalAttentionQuadraticAndRecurrent) {
  for (const FeatureMapOptions& map : {kRandom, kSeries}) {
    AttentionCase shape{.B = 1, .H = 2, .G = 2, .T = 70, .D = 8, .scale = 0.4};
    shape.f = map.feature_map == FeatureMapKind::kPositiveRandom ? 12 : 0;
    shape.options.window = WindowLayout::kNone;
    shape.options.set_map(map);
    const AttentionInputs x = make_inputs(shape);
    const auto map_of = [&](const at::Tensor& rows, const FeatureMapWeights& weights, auto role) {
      return apply_feature_map(rows, weights, map, shape.H, role);
    };
    const at::Tensor phi_q = map_of(x.q, x.parameters.q, FeatureMapRole::kQuery),
                     phi_k = map_of(x.k, x.parameters.k, FeatureMapRole::kKey);
    const at::Tensor weights = at::tril(at::matmul(phi_q, phi_k.transpose(-1, -2)));
    const at::Tensor quadratic = at::matmul(weights, x.v) / weights.sum(-1, true);
    const auto expect_equal = [&](const at::Tensor& y, const char* backend) {
      EXPECT_LT((y - quadratic).abs().max().item<double>(), 2e-5)
          << shape.name() << ", " << backend;
    };
    expect_equal(hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options), "fused");
    DecodeState state =
        make_decode_state(1, 2, 2, 8, phi_q.size(3), at::kFloat, at::kCPU, shape.options);
    std::vector<at::Tensor> rows;
    for (std::int64_t t = 0; t < shape.T; ++t) {
      rows.push_back(decode_step(x.q.select(2, t),
                                 x.k.select(2, t),
                                 x.v.select(2, t),
                                 state,
                                 x.parameters,
                                 shape.options));
    }
    expect_equal(at::stack(rows, 2), "recurrent");
  }
}

}  // namespace
}  // namespace hedgerow::kernels
