// score_attention against kernels/plain in fp64 for every spec that both know, and the input that a
// study must never train on.
#include "worker/laboratory/score_attention.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <numbers>
#include <span>
#include <vector>

#include "kernels/hybrid_attention.hpp"
#include "kernels/plain/attention.hpp"
#include "kernels/softmax_attention.hpp"
#include "storage/base/error.hpp"
#include "worker/laboratory/transformer.hpp"

namespace hedgerow::worker::laboratory {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t H = 2, T = 13, D = 4, E = 3;
constexpr double kTolerance = 1e-10;

struct Inputs {
  at::Tensor q, k, v;  // [1, H, T, ..] in fp64
  Inputs() {
    at::manual_seed(7);
    const auto options = at::TensorOptions().dtype(at::kDouble);
    q = at::randn({1, H, T, D}, options);
    k = at::randn({1, H, T, D}, options);
    v = at::randn({1, H, T, E}, options);
  }
};

plain::Rows<const double> rows(const at::Tensor& matrix) {
  return {std::span(matrix.const_data_ptr<double>(), static_cast<std::size_t>(matrix.numel())),
          static_cast<std::size_t>(matrix.size(-1))};
}

plain::Rows<double> written(at::Tensor& matrix) {
  return {std::span(matrix.mutable_data_ptr<double>(), static_cast<std::size_t>(matrix.numel())),
          static_cast<std::size_t>(matrix.size(-1))};
}

plain::Mask mask_of(bool causal) {
  return causal ? plain::Mask::kCausal : plain::Mask::kBidirectional;
}

// y of each head by `of_head`, whose last argument it writes.
template <typename OfHead>
at::Tensor by_heads(const Inputs& in, const OfHead& of_head) {
  at::Tensor y = at::zeros_like(in.v);
  for (std::int64_t h = 0; h < H; ++h) {
    at::Tensor head = y[0][h];
    of_head(h, in.q[0][h], in.k[0][h], in.v[0][h], written(head));
  }
  return y;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  const double worst =
      ((found - expected).abs() / expected.abs().clamp_min(1.0)).max().item<double>();
  EXPECT_LE(worst, kTolerance) << what;
}

std::string refusal_of(const ScoreSpec& spec) {
  try {
    spec.validate();
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

class BothWays : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Mask, BothWays, ::testing::Bool());

TEST_P(BothWays, SoftmaxEqualsThePlainHeader) {
  const Inputs in;
  ScoreSpec spec;
  spec.causal = GetParam();
  const at::Tensor expected = by_heads(in, [&](auto, auto q, auto k, auto v, auto y) {
    plain::softmax_attention<double>(mask_of(GetParam()), rows(q), rows(k), rows(v), y);
  });
  expect_near(score_attention(in.q, in.k, in.v, spec), expected, "softmax");
}

TEST_P(BothWays, SeriesOfEvenOrdersEqualThePlainHeader) {
  const Inputs in;
  for (const int order : {0, 2, 4, 10}) {
    ScoreSpec spec;
    spec.score = Score::kSeries;
    spec.order = order;
    spec.causal = GetParam();
    const at::Tensor expected = by_heads(in, [&](auto, auto q, auto k, auto v, auto y) {
      plain::series_attention<double>(
          mask_of(GetParam()), static_cast<std::size_t>(order), rows(q), rows(k), rows(v), y);
    });
    expect_near(
        score_attention(in.q, in.k, in.v, spec), expected, "order " + std::to_string(order));
  }
}

TEST_P(BothWays, EluFeaturesEqualThePlainHeader) {
  const Inputs in;
  AttentionParameters parameters;
  parameters.weight = at::randn({H, D, 5}, in.q.options());
  parameters.bias = at::randn({H, 5}, in.q.options());
  ScoreSpec spec;
  spec.score = Score::kProduct;
  spec.map = Map::kEluPlusOne;
  spec.causal = GetParam();
  const at::Tensor expected = by_heads(in, [&](auto h, auto q, auto k, auto v, auto y) {
    at::Tensor phi_q = at::zeros({T, 5}, in.q.options()), phi_k = at::zeros_like(phi_q);
    const at::Tensor W = parameters.weight[h], b = parameters.bias[h];
    plain::elu_plus_one_features<double>(rows(W), rows(b).values(), rows(q), written(phi_q));
    plain::elu_plus_one_features<double>(rows(W), rows(b).values(), rows(k), written(phi_k));
    plain::linear_attention<double>(mask_of(GetParam()), rows(phi_q), rows(phi_k), rows(v), y);
  });
  expect_near(score_attention(in.q, in.k, in.v, spec, parameters), expected, "1 + ELU");
}

TEST_P(BothWays, PositiveRandomFeaturesEqualThePlainHeader) {
  const Inputs in;
  for (const bool orthogonal : {false, true}) {
    ScoreSpec spec;
    spec.score = Score::kProduct;
    spec.map = Map::kFavor;
    spec.num_features = 6;  // a block of D directions and a half
    spec.causal = GetParam();
    AttentionParameters parameters;
    parameters.omega = draw_directions(D, 6, orthogonal, 3, in.q).contiguous();
    const at::Tensor omega = parameters.omega;
    const at::Tensor expected = by_heads(in, [&](auto, auto q, auto k, auto v, auto y) {
      at::Tensor phi_q = at::zeros({T, 6}, in.q.options()), phi_k = at::zeros_like(phi_q);
      plain::positive_random_features<double>(
          plain::Side::kQuery, rows(omega), rows(q), written(phi_q));
      plain::positive_random_features<double>(
          plain::Side::kKey, rows(omega), rows(k), written(phi_k));
      plain::linear_attention<double>(mask_of(GetParam()), rows(phi_q), rows(phi_k), rows(v), y);
    });
    expect_near(score_attention(in.q, in.k, in.v, spec, parameters), expected, "FAVOR+");
  }
}

// Catches: tensor powers that are not the polynomial they stand for.
TEST(ScoreAttention, TaylorAndLimitFeaturesAreTheirPolynomials) {
  const Inputs in;
  const at::Tensor s = at::matmul(in.q, in.k.transpose(-1, -2)) / 2.0;  // sqrt(D)
  ScoreSpec spec;
  spec.score = Score::kProduct;
  spec.map = Map::kTaylor;
  spec.denominator = Denominator::kNone;
  spec.causal = false;
  spec.order = 3;
  expect_near(attention_weights(in.q, in.k, spec), 1 + s + s * s / 2 + s * s * s / 6, "Taylor");
  spec.map = Map::kLimit;
  spec.order = 4;
  expect_near(attention_weights(in.q, in.k, spec), (1 + s / 4).pow(4), "limit");
}

TEST(ScoreAttention, OrthogonalDirectionsAreOrthogonalAndFollowTheSeed) {
  const at::Tensor like = at::zeros({1}, at::kDouble);
  const at::Tensor omega = draw_directions(8, 8, true, 5, like);
  const at::Tensor products = at::matmul(omega.t(), omega);
  EXPECT_LT((products - products.diagonal().diag()).abs().max().item<double>(), 1e-10);
  EXPECT_TRUE(at::equal(omega, draw_directions(8, 8, true, 5, like)));
  EXPECT_FALSE(at::equal(omega, draw_directions(8, 8, true, 6, like)));
}

TEST(ScoreAttention, ALaterTokenNeverChangesAnEarlierOutput) {
  const Inputs in;
  ScoreSpec hedgehog, cosine;
  hedgehog.score = cosine.score = Score::kProduct;
  hedgehog.map = Map::kHedgehog;
  cosine.map = Map::kCosine;
  cosine.denominator = Denominator::kLength;
  cosine.norm = OutputNorm::kL2;
  for (const ScoreSpec& spec : {ScoreSpec{}, hedgehog, cosine}) {
    at::Tensor changed = in.k.clone();
    changed.select(2, T - 1).add_(3);
    const at::Tensor a = score_attention(in.q, in.k, in.v, spec);
    const at::Tensor b = score_attention(in.q, changed, in.v, spec);
    EXPECT_TRUE(at::equal(a.narrow(2, 0, T - 1), b.narrow(2, 0, T - 1))) << spec.name;
    EXPECT_FALSE(at::equal(a, b));
  }
}

TEST(ScoreAttention, PaddingOnTheRightIsNeverSeenAndOnTheLeftIsRefused) {
  const Inputs in;
  ScoreSpec spec;
  spec.causal = false;
  AttentionParameters parameters;
  parameters.is_token = at::ones({1, T}, at::kBool);
  parameters.is_token.narrow(1, 9, T - 9).fill_(false);
  const at::Tensor padded = score_attention(in.q, in.k, in.v, spec, parameters);
  const at::Tensor alone = score_attention(in.q, in.k.narrow(2, 0, 9), in.v.narrow(2, 0, 9), spec);
  expect_near(padded, alone, "padding");
  parameters.is_token = parameters.is_token.flip(1);
  try {
    (void)score_attention(in.q, in.k, in.v, spec, parameters);
    FAIL() << "padding on the left was accepted";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("padding"));
  }
}

TEST(ScoreAttention, DenominatorsAndNormsAreTheirFormulas) {
  const Inputs in;
  ScoreSpec spec;
  spec.denominator = Denominator::kLength;
  const at::Tensor s = at::matmul(in.q, in.k.transpose(-1, -2)) / 2.0;
  const at::Tensor scores = s.exp().tril();
  const at::Tensor length = at::arange(1, T + 1, in.q.options()).unsqueeze(-1);
  expect_near(score_attention(in.q, in.k, in.v, spec), at::matmul(scores, in.v) / length, "1/t");
  spec.denominator = Denominator::kNone;
  const at::Tensor plain_sum = at::matmul(scores, in.v);
  spec.norm = OutputNorm::kL2;
  expect_near(
      score_attention(in.q, in.k, in.v, spec), plain_sum / plain_sum.norm(2, -1, true), "L2");
  spec.norm = OutputNorm::kNone;
  spec.clamp = 0.5;
  expect_near(attention_weights(in.q, in.k, spec), s.clamp_max(0.5).exp().tril(), "clamp");
}

TEST(ScoreAttention, RmsAndLayerNormsAreOverTheColumnsOfAHead) {
  const Inputs in;
  ScoreSpec spec;
  const at::Tensor s = at::matmul(in.q, in.k.transpose(-1, -2)) / 2.0;
  const at::Tensor e = s.exp().tril();
  const at::Tensor y = at::matmul(e / e.sum(-1, true), in.v);
  constexpr double kEpsilon = 1e-6;
  spec.norm = OutputNorm::kRms;
  const at::Tensor squares = y.square().sum(-1, true) / static_cast<double>(E);
  expect_near(score_attention(in.q, in.k, in.v, spec), y / (squares + kEpsilon).sqrt(), "RMS");
  spec.norm = OutputNorm::kLayer;
  const at::Tensor centred = y - y.sum(-1, true) / static_cast<double>(E);
  const at::Tensor variance = centred.square().sum(-1, true) / static_cast<double>(E);
  expect_near(
      score_attention(in.q, in.k, in.v, spec), centred / (variance + kEpsilon).sqrt(), "Layer");
}

// Catches: gates with their names the other way round, as 004's appendix E has them.
TEST_P(BothWays, GatesAreOfKeysBeforeTheSumAndOfQueriesBehindIt) {
  const Inputs in;
  ScoreSpec spec;
  spec.causal = GetParam();
  spec.denominator = Denominator::kLength;
  spec.input_gate = spec.output_gate = true;
  AttentionParameters parameters;
  parameters.input_gate = at::rand({1, H, T}, in.q.options());
  parameters.output_gate = at::rand({1, H, T}, in.q.options());
  const at::Tensor found = score_attention(in.q, in.k, in.v, spec, parameters);
  at::Tensor expected = at::zeros_like(in.v);
  for (std::int64_t h = 0; h < H; ++h) {
    for (std::int64_t t = 0; t < T; ++t) {
      const std::int64_t seen = spec.causal ? t + 1 : T;
      at::Tensor y = expected[0][h][t];
      for (std::int64_t j = 0; j < seen; ++j)
        y += (in.q[0][h][t].dot(in.k[0][h][j]) / 2.0).exp() * parameters.input_gate[0][h][j] *
             in.v[0][h][j];
      y *= parameters.output_gate[0][h][t] / static_cast<double>(seen);
    }
  }
  expect_near(found, expected, "gates");
  parameters.input_gate = at::Tensor();
  EXPECT_THROW((void)score_attention(in.q, in.k, in.v, spec, parameters), storage::Error);
}

TEST_P(BothWays, CosFormerWeighsByTheCosineOfTheDistance) {
  const Inputs in;
  ScoreSpec spec;
  spec.score = Score::kProduct;
  spec.map = Map::kCosFormer;
  spec.causal = GetParam();
  const at::Tensor place = at::arange(T, in.q.options());
  const at::Tensor distance = place.unsqueeze(1) - place;
  const at::Tensor cosine = (std::numbers::pi / 2 * distance / static_cast<double>(T)).cos();
  at::Tensor scores = at::matmul(in.q.relu(), in.k.relu().transpose(-1, -2)) * cosine;
  if (GetParam()) scores = scores.tril();
  const at::Tensor weights = scores / (scores.sum(-1, true) + 1e-12);
  expect_near(score_attention(in.q, in.k, in.v, spec), at::matmul(weights, in.v), "cosFormer");
}

TEST(ScoreAttention, RandomAndTaylorFeaturesAreHalfOfEachEstimate) {
  const Inputs in;
  ScoreSpec spec;
  spec.score = Score::kProduct;
  spec.map = Map::kRandomTaylor;
  spec.order = 2;
  spec.num_features = 6;
  spec.denominator = Denominator::kNone;
  spec.causal = false;
  AttentionParameters parameters;
  parameters.omega = draw_directions(D, 6, true, 9, in.q);
  const at::Tensor q = in.q / std::sqrt(2.0), k = in.k / std::sqrt(2.0);  // D^-1/4
  const at::Tensor s = at::matmul(q, k.transpose(-1, -2));
  const auto features = [&](const at::Tensor& x) {
    return (at::matmul(x, parameters.omega) - x.square().sum(-1, true) / 2).exp();
  };
  const at::Tensor random = at::matmul(features(q), features(k).transpose(-1, -2)) / 6.0;
  expect_near(attention_weights(in.q, in.k, spec, parameters),
              (1 + s + s * s / 2) / 2 + random / 2,
              "random + Taylor");
}

// Against the hybrid's own backends without a window, in fp32. With negation the kernels have
// LoLCATs' two softmaxes, of z and of -z, and 000 one over both, so that map is compared without;
// their exp takes each key's largest exponent away, which is another map than 000's e^z.
TEST(ScoreAttention, LinearAttentionEqualsTheKernels) {
  at::manual_seed(8);
  constexpr std::int64_t kRows = 37, kWidth = 16;
  const at::Tensor q = at::randn({2, H, kRows, kWidth}), k = at::randn({2, H, kRows, kWidth}),
                   v = at::randn({2, H, kRows, kWidth});
  struct Pair {
    Map ours;
    kernels::FeatureMapKind theirs;
    bool is_projected;
  };
  for (const Pair& pair :
       {Pair{Map::kHedgehog, kernels::FeatureMapKind::kHedgehogSoftmax, true},
        Pair{Map::kEluPlusOne, kernels::FeatureMapKind::kEluPlusOne, false},
        Pair{Map::kEluPlusOne, kernels::FeatureMapKind::kProjectedEluPlusOne, true},
        Pair{Map::kRelu, kernels::FeatureMapKind::kT2R, true},
        Pair{Map::kTaylor, kernels::FeatureMapKind::kTaylor, false}}) {
    ScoreSpec spec;
    spec.score = Score::kProduct;
    spec.map = pair.ours;
    AttentionParameters ours;
    kernels::HybridParameters theirs;
    kernels::HybridOptions options;
    options.window = kernels::WindowLayout::kNone;
    options.feature_map = pair.theirs;
    options.negation = spec.negation = false;
    if (pair.is_projected) {
      ours.weight = at::randn({H, kWidth, kWidth}) / 4;
      ours.bias = at::randn({H, kWidth}) / 4;
      theirs.q.layer = theirs.k.layer = ours.weight;
      theirs.q.bias = theirs.k.bias = ours.bias;
    }
    const at::Tensor found = score_attention(q, k, v, spec, ours);
    for (const auto backend : {kernels::Backend::kAten, kernels::Backend::kAuto}) {
      const at::Tensor expected =
          kernels::hybrid_attention(q, k, v, theirs, options, backend).contiguous();
      EXPECT_LE((found - expected).abs().max().item<double>(), 2e-4)
          << to_string(pair.ours) << ", backend " << static_cast<int>(backend);
    }
  }
}

// The kernels subtract the largest exponent of a query, which cancels.
TEST(ScoreAttention, RandomFeaturesAndSoftmaxEqualTheKernels) {
  at::manual_seed(9);
  constexpr std::int64_t kRows = 37, kWidth = 16, kFeatures = 24;
  const at::Tensor q = at::randn({2, H, kRows, kWidth}), k = at::randn({2, H, kRows, kWidth}),
                   v = at::randn({2, H, kRows, kWidth});
  ScoreSpec favor;
  favor.score = Score::kProduct;
  favor.map = Map::kFavor;
  favor.num_features = kFeatures;
  AttentionParameters ours;
  ours.omega = draw_directions(kWidth, kFeatures, true, 3, q).contiguous();
  kernels::HybridParameters theirs;
  theirs.q.layer = theirs.k.layer = ours.omega.expand({H, kWidth, kFeatures}).contiguous();
  kernels::HybridOptions options;
  options.window = kernels::WindowLayout::kNone;
  options.feature_map = kernels::FeatureMapKind::kPositiveRandom;
  options.negation = false;
  const auto expect = [](const at::Tensor& found, const at::Tensor& expected, const char* what) {
    EXPECT_LE((found - expected).abs().max().item<double>(), 2e-4) << what;
  };
  const at::Tensor by_features = score_attention(q, k, v, favor, ours),
                   by_softmax = score_attention(q, k, v, ScoreSpec{});
  for (const auto backend : {kernels::Backend::kAten, kernels::Backend::kAuto}) {
    expect(by_features,
           kernels::hybrid_attention(q, k, v, theirs, options, backend),
           "positive random features");
    expect(by_softmax, kernels::softmax_attention(q, k, v, backend), "softmax");
  }
}

// Catches: a detached denominator through which a gradient flows after all.
TEST(ScoreAttention, ADetachedSumHasTheSameValueAndAnotherGradient) {
  Inputs in;
  in.q.requires_grad_(true);
  ScoreSpec sum, detached;
  detached.denominator = Denominator::kDetachedSum;
  const at::Tensor a = score_attention(in.q, in.k, in.v, sum);
  const at::Tensor b = score_attention(in.q, in.k, in.v, detached);
  expect_near(b.detach(), a.detach(), "detached");
  a.square().sum().backward();
  const at::Tensor gradient = in.q.grad().clone();
  in.q.mutable_grad().zero_();
  b.square().sum().backward();
  EXPECT_FALSE(at::allclose(gradient, in.q.grad()));
}

TEST(ScoreSpec, WhatCannotBeNormalisedIsRefusedByItsField) {
  ScoreSpec spec;
  spec.score = Score::kSeries;
  spec.order = 3;
  EXPECT_THAT(refusal_of(spec), HasSubstr("order"));
  spec.denominator = Denominator::kLength;
  EXPECT_EQ(refusal_of(spec), "");
  spec.denominator = Denominator::kDetachedSum;
  EXPECT_THAT(refusal_of(spec), HasSubstr("order"));
  for (const Map map : {Map::kIdentity, Map::kCosine}) {
    ScoreSpec negative;
    negative.score = Score::kProduct;
    negative.map = map;
    EXPECT_THAT(refusal_of(negative), HasSubstr("map")) << to_string(map);
  }
  ScoreSpec trained;
  trained.score = Score::kProduct;
  trained.map = Map::kExp;
  trained.trained_map = true;
  EXPECT_THAT(refusal_of(trained), HasSubstr("trained_map"));
  ScoreSpec random;
  random.score = Score::kProduct;
  random.map = Map::kFavor;
  EXPECT_THAT(refusal_of(random), HasSubstr("num_features"));
}

TEST(Transformer, ASequenceBeyondLearnedPositionsIsRefused) {
  TransformerOptions options;
  options.positions = Positions::kLearned;
  options.max_positions = 8;
  const Transformer model(options);
  EXPECT_NO_THROW((void)model.hidden(at::zeros({1, 8}, at::kLong)));
  try {
    (void)model.hidden(at::zeros({1, 9}, at::kLong));
    FAIL() << "9 tokens were accepted";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("max_positions"));
  }
}

}  // namespace
}  // namespace hedgerow::worker::laboratory
