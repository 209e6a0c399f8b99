// Each function of the plain header against its definition: pairs of a query and a key, weight by
// weight, in double, without a sum that is carried from key to key.
#include <gtest/gtest.h>

#include <functional>
#include <numbers>
#include <random>

#include "kernels/plain/attention.hpp"

namespace hedgerow::plain {
namespace {

constexpr double kTolerance = 1e-10;

using Values = std::vector<double>;

Values normal(std::size_t count, std::uint32_t seed, double size = 1) {
  std::mt19937 bits(seed);
  const auto uniform = [&bits] { return (static_cast<double>(bits()) + 0.5) / 4294967296.0; };
  Values values(count);
  for (double& value : values) {  // Box and Muller's, which every library rounds alike
    const double radius = std::sqrt(-2 * std::log(uniform()));
    value = size * radius * std::cos(2 * std::numbers::pi * uniform());
  }
  return values;
}

double score(std::span<const double> q, std::span<const double> k) {
  double sum = 0;
  for (std::size_t d = 0; d < q.size(); ++d) sum += q[d] * k[d];
  return sum / std::sqrt(static_cast<double>(q.size()));
}

// y_i = sum_j w_ij v_j / (sum_j w_ij + epsilon).
Values weighted(std::size_t num_queries,
                Rows<const double> v,
                const std::function<double(std::size_t, std::size_t)>& weight,
                double epsilon = 0) {
  Values y(num_queries * v.columns());
  for (std::size_t i = 0; i < num_queries; ++i) {
    double sum = epsilon;
    for (std::size_t j = 0; j < v.size(); ++j) sum += weight(i, j);
    for (std::size_t j = 0; j < v.size(); ++j) {
      for (std::size_t e = 0; e < v.columns(); ++e) {
        y[i * v.columns() + e] += weight(i, j) / sum * v[j][e];
      }
    }
  }
  return y;
}

void expect_near(std::span<const double> found,
                 std::span<const double> expected,
                 const std::string& what,
                 double tolerance = kTolerance) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
        << what << ", value " << i;
  }
}

bool sees(Mask mask, std::size_t query, std::size_t key) {
  return mask == Mask::kBidirectional || key <= query;
}

std::string name(Mask mask) { return mask == Mask::kCausal ? "causal" : "bidirectional"; }

// T tokens on both sides, with E != D.
struct Inputs {
  std::size_t T, D, E;
  Values q, k, v, y;
  Inputs(std::size_t tokens, std::size_t head_dim, std::size_t columns, double size = 1)
      : T(tokens),
        D(head_dim),
        E(columns),
        q(normal(T * D, 1, size)),
        k(normal(T * D, 2, size)),
        v(normal(T * E, 3)),
        y(T * E, -7.0) {}  // what was in y must not stay there
  [[nodiscard]] Rows<const double> queries() const { return {q, D}; }
  [[nodiscard]] Rows<const double> keys() const { return {k, D}; }
  [[nodiscard]] Rows<const double> values() const { return {v, E}; }
  [[nodiscard]] Rows<double> out() { return {y, E}; }
};

TEST(PlainAttention, SoftmaxEqualsItsDefinitionAndTakesLargeScores) {
  for (const Mask mask : {Mask::kBidirectional, Mask::kCausal}) {
    for (const double size : {1.0, 30.0}) {
      Inputs x(23, 5, 3, size);
      softmax_attention(mask, x.queries(), x.keys(), x.values(), x.out());
      const auto weight = [&](std::size_t i, std::size_t j) {
        double maximum = -1e300;
        for (std::size_t other = 0; other < x.T; ++other) {
          if (sees(mask, i, other)) {
            maximum = std::max(maximum, score(x.queries()[i], x.keys()[other]));
          }
        }
        return sees(mask, i, j) ? std::exp(score(x.queries()[i], x.keys()[j]) - maximum) : 0;
      };
      expect_near(x.y, weighted(x.T, x.values(), weight), name(mask));
    }
  }
}

TEST(PlainAttention, FewerQueriesThanKeysAreAnsweredWithoutAMask) {
  Inputs x(9, 4, 2);
  Values some(2 * x.E);
  softmax_attention<double>(Mask::kBidirectional,
                            {std::span(x.q).first(2 * x.D), x.D},
                            x.keys(),
                            x.values(),
                            {some, x.E});
  softmax_attention(Mask::kBidirectional, x.queries(), x.keys(), x.values(), x.out());
  expect_near(some, std::span(x.y).first(2 * x.E), "first two of nine");
}

TEST(PlainAttention, EluFeaturesEqualTheirDefinition) {
  constexpr std::size_t T = 11, D = 4, F = 6;
  const Values x = normal(T * D, 4), weight = normal(D * F, 5), bias = normal(F, 6);
  Values phi(T * F);
  elu_plus_one_features<double>({weight, F}, bias, {x, D}, {phi, F});
  Values expected(T * F);
  for (std::size_t t = 0; t < T; ++t) {
    for (std::size_t f = 0; f < F; ++f) {
      double z = bias[f];
      for (std::size_t d = 0; d < D; ++d) z += x[t * D + d] * weight[d * F + f];
      expected[t * F + f] = (z > 0 ? z : std::exp(z) - 1) + 1;
    }
  }
  expect_near(phi, expected, "phi");
}

TEST(PlainAttention, LinearAttentionEqualsItsDefinitionBothWays) {
  constexpr std::size_t F = 7;
  for (const Mask mask : {Mask::kBidirectional, Mask::kCausal}) {
    Inputs x(31, 5, 3);
    Values phi_q = normal(x.T * F, 7), phi_k = normal(x.T * F, 8);
    for (double& value : phi_q) value = std::abs(value);
    for (double& value : phi_k) value = std::abs(value);
    linear_attention<double>(mask, {phi_q, F}, {phi_k, F}, x.values(), x.out());
    const auto weight = [&](std::size_t i, std::size_t j) {
      double sum = 0;
      for (std::size_t f = 0; f < F; ++f) sum += phi_q[i * F + f] * phi_k[j * F + f];
      return sees(mask, i, j) ? sum : 0;
    };
    expect_near(x.y, weighted(x.T, x.values(), weight, kLinearEpsilon), name(mask));
  }
}

// Denominators of 1e-12 show the epsilon, and a query before any key is 0 and not NaN.
TEST(PlainAttention, TheLinearDenominatorHasItsEpsilon) {
  LinearState<double> state(2, 1);
  const Values phi = {1e-6, 0}, v = {3};
  Values y = {1};
  state.attend(phi, y);
  EXPECT_EQ(y[0], 0);
  state.add(phi, v);
  state.attend(phi, y);
  EXPECT_NEAR(y[0], 3 * 1e-12 / (1e-12 + kLinearEpsilon), kTolerance);
}

// The definition, with the border of the window in words of its own: a chunk is W tokens.
double hybrid_weight(const HybridOptions& options,
                     const Inputs& x,
                     Rows<const double> phi_q,
                     Rows<const double> phi_k,
                     std::size_t i,
                     std::size_t j) {
  const auto in_window = [&](std::size_t key) {
    const std::size_t W = options.window_size;
    const bool near = options.window == Window::kSliding ? i - key < W : i / W - key / W <= 1;
    return key <= i && (near || key < options.num_sinks);
  };
  if (j > i) return 0;
  if (!in_window(j)) {
    double sum = 0;
    for (std::size_t f = 0; f < phi_q.columns(); ++f) sum += phi_q[i][f] * phi_k[j][f];
    return sum;
  }
  double maximum = -1e300;
  for (std::size_t key = 0; key <= i; ++key) {
    if (in_window(key)) maximum = std::max(maximum, score(x.queries()[i], x.keys()[key]));
  }
  const double g = 1 / (1 + std::exp(-options.window_factor));
  return g * std::exp(score(x.queries()[i], x.keys()[j]) - maximum);
}

TEST(PlainAttention, TheHybridEqualsItsDefinition) {
  constexpr std::size_t F = 4;
  Inputs x(41, 5, 3, 2);
  Values phi_q = normal(x.T * F, 9), phi_k = normal(x.T * F, 10);
  for (double& value : phi_q) value = std::exp(value);
  for (double& value : phi_k) value = std::exp(value);
  for (const Window window : {Window::kSliding, Window::kTerraced}) {
    for (const std::size_t W : {1U, 4U, 7U, 41U, 60U}) {
      for (const std::size_t sinks : {0U, 1U, 3U, 5U, 50U}) {
        const HybridOptions options{
            .window = window, .window_size = W, .num_sinks = sinks, .window_factor = -1.3};
        hybrid_attention<double>(
            options, x.queries(), x.keys(), {phi_q, F}, {phi_k, F}, x.values(), x.out());
        const auto weight = [&](std::size_t i, std::size_t j) {
          return hybrid_weight(options, x, {phi_q, F}, {phi_k, F}, i, j);
        };
        expect_near(x.y,
                    weighted(x.T, x.values(), weight),
                    (window == Window::kSliding ? "sliding " : "terraced ") + std::to_string(W) +
                        ", sinks " + std::to_string(sinks));
      }
    }
  }
}

TEST(PlainAttention, AHybridWhoseWindowHoldsAllIsSoftmax) {
  Inputs x(12, 4, 3);
  const Values phi(x.T, 1.0);
  hybrid_attention<double>({.window_size = 12, .window_factor = -5},
                           x.queries(),
                           x.keys(),
                           {phi, 1},
                           {phi, 1},
                           x.values(),
                           x.out());
  const Values hybrid = x.y;
  softmax_attention(Mask::kCausal, x.queries(), x.keys(), x.values(), x.out());
  expect_near(hybrid, x.y, "softmax");
}

TEST(PlainAttention, RandomFeaturesEqualTheirDefinitionAndAQuerysLoseTheirScale) {
  constexpr std::size_t T = 9, D = 5, F = 8;
  const Values x = normal(T * D, 11), omega = normal(D * F, 12);
  Values key(T * F), query(T * F);
  positive_random_features<double>(Side::kKey, {omega, F}, {x, D}, {key, F});
  positive_random_features<double>(Side::kQuery, {omega, F}, {x, D}, {query, F});
  const double scale = std::pow(D, -0.25);
  Values expected_key(T * F), expected_query(T * F);
  for (std::size_t t = 0; t < T; ++t) {
    double square = 0, largest = 0;
    for (std::size_t d = 0; d < D; ++d) square += std::pow(x[t * D + d] * scale, 2);
    for (std::size_t f = 0; f < F; ++f) {
      double z = 0;
      for (std::size_t d = 0; d < D; ++d) z += omega[d * F + f] * x[t * D + d] * scale;
      expected_key[t * F + f] = std::exp(z - square / 2) / std::sqrt(F);
      largest = std::max(largest, expected_key[t * F + f]);
    }
    for (std::size_t f = 0; f < F; ++f) {
      expected_query[t * F + f] = expected_key[t * F + f] / largest / std::sqrt(F);
    }
  }
  expect_near(key, expected_key, "key");
  expect_near(query, expected_query, "query");
}

// One draw of many features at |q' + k'|^2 = 1: the law gives a deviation of 0.0029.
TEST(PlainAttention, RandomFeaturesEstimateTheExponential) {
  constexpr std::size_t D = 4, F = 200'000;
  Values q = normal(D, 13), k = normal(D, 14);
  double square = 0;
  for (std::size_t d = 0; d < D; ++d) square += (q[d] + k[d]) * (q[d] + k[d]);
  const double stretch = std::pow(D, 0.25) / std::sqrt(square);
  for (std::size_t d = 0; d < D; ++d) q[d] *= stretch, k[d] *= stretch;
  const Values omega = normal(D * F, 15);
  Values phi_q(F), phi_k(F);
  positive_random_features<double>(Side::kKey, {omega, F}, {q, D}, {phi_q, F});
  positive_random_features<double>(Side::kKey, {omega, F}, {k, D}, {phi_k, F});
  double found = 0;
  for (std::size_t f = 0; f < F; ++f) found += phi_q[f] * phi_k[f];
  const double law = std::sqrt((std::numbers::e - 1) / F);
  EXPECT_NEAR(found / std::exp(score(q, k)), 1, 3 * law);
}

double polynomial(double s, std::size_t order) {
  double sum = 1, term = 1;
  for (std::size_t n = 1; n <= order; ++n) sum += term *= s / static_cast<double>(n);
  return sum;
}

TEST(PlainAttention, TheSeriesOfEveryOrderEqualsThePolynomialOfTheScore) {
  for (const std::size_t D : {1U, 2U, 3U, 4U}) {
    for (std::size_t order = 0; order <= kMaxSeriesOrder; ++order) {
      for (const Mask mask : {Mask::kBidirectional, Mask::kCausal}) {
        Inputs x(13, D, 3, 0.7);
        series_attention(mask, order, x.queries(), x.keys(), x.values(), x.out());
        const auto weight = [&](std::size_t i, std::size_t j) {
          return sees(mask, i, j) ? polynomial(score(x.queries()[i], x.keys()[j]), order) : 0;
        };
        expect_near(x.y,
                    weighted(x.T, x.values(), weight),
                    name(mask) + ", D " + std::to_string(D) + ", order " + std::to_string(order));
      }
    }
  }
}

// 43,758 sums a column, where the products of arXiv 2507.23632 are 1.2e9 (8^10 of degree 10).
TEST(PlainAttention, SymmetricProductsAreMerged) {
  EXPECT_EQ(Monomials(10, 8).size(), 43'758U);
  EXPECT_EQ(Monomials(2, 64).size(), 2'145U);
  EXPECT_EQ(Monomials(0, 5).size(), 1U);
  Values q = normal(8, 16, 0.8), k = normal(8, 17, 0.8);
  const Monomials monomials(10, 8);
  Values phi_q(monomials.size()), phi_k(monomials.size());
  monomials.features<double>(q, phi_q);
  monomials.features<double>(k, phi_k);
  double found = 0;
  for (std::size_t m = 0; m < phi_q.size(); ++m) found += phi_q[m] * phi_k[m];
  EXPECT_NEAR(found, polynomial(score(q, k), 10), kTolerance);
}

TEST(PlainAttention, TheSeriesOfOrderTenIsSoftmaxWhereScoresAreSmall) {
  Inputs x(20, 3, 2, 0.5);
  series_attention(Mask::kCausal, 10, x.queries(), x.keys(), x.values(), x.out());
  const Values series = x.y;
  softmax_attention(Mask::kCausal, x.queries(), x.keys(), x.values(), x.out());
  expect_near(series, x.y, "softmax", 1e-7);
}

TEST(PlainAttention, FloatsGiveWhatDoublesGiveToSixDigits) {
  constexpr std::size_t T = 30, D = 4;
  const Values x = normal(T * D, 18);
  Values y(T * D);
  const std::vector<float> narrow(x.begin(), x.end());
  std::vector<float> narrow_y(T * D);
  const HybridOptions options{.window_size = 8, .num_sinks = 2};
  Values phi(T * 6);
  std::vector<float> narrow_phi(T * 6);
  const Values weight = normal(D * 6, 19), bias(6);
  const std::vector<float> narrow_weight(weight.begin(), weight.end()), narrow_bias(6);
  elu_plus_one_features<double>({weight, 6}, bias, {x, D}, {phi, 6});
  elu_plus_one_features<float>({narrow_weight, 6}, narrow_bias, {narrow, D}, {narrow_phi, 6});
  hybrid_attention<double>(options, {x, D}, {x, D}, {phi, 6}, {phi, 6}, {x, D}, {y, D});
  hybrid_attention<float>(options,
                          {narrow, D},
                          {narrow, D},
                          {narrow_phi, 6},
                          {narrow_phi, 6},
                          {narrow, D},
                          {narrow_y, D});
  expect_near(Values(narrow_y.begin(), narrow_y.end()), y, "hybrid", 1e-5);
}

template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(PlainAttention, WhatDoesNotFitIsNamedAndNothingIsWritten) {
  Inputs x(6, 4, 3);
  const Values before = x.y;
  const Rows<const double> five(std::span(x.k).first(20), 4), narrow(x.k, 3);
  const auto softmax = [&](Mask mask, Rows<const double> k, Rows<const double> v) {
    return error_of([&] { softmax_attention(mask, x.queries(), k, v, x.out()); });
  };
  EXPECT_EQ(softmax(Mask::kCausal, x.keys(), {std::span(x.v).first(15), 3}),
            "attention: rows of v, as k has: expected 6, found 5");
  EXPECT_EQ(softmax(Mask::kBidirectional, narrow, x.values()),
            "attention: columns of k, as q has: expected 4, found 3");
  EXPECT_EQ(softmax(Mask::kCausal, five, {std::span(x.v).first(15), 3}),
            "causal attention: rows of k, as q has: expected 6, found 5");
  EXPECT_EQ(error_of([&] { Rows<double>(x.y, 4); }),
            "rows: expected whole rows of 4 columns, found 18 values");
  EXPECT_EQ(error_of([&] { Rows<double>(x.y, 0); }),
            "rows: expected whole rows of 0 columns, found 18 values");
  EXPECT_EQ(error_of([] { LinearState<double>(2, 0); }),
            "linear state: expected features and columns, found none");
  const LinearState<double> state(2, 2);
  EXPECT_EQ(error_of([&] { state.attend(std::span(x.q).first(2), x.y); }),
            "linear state: columns of y: expected 2, found 18");
  EXPECT_EQ(error_of([&] { SeriesState<double>(2, 4, 2).attend(x.queries()[0], x.y); }),
            "series: columns of y: expected 2, found 18");
  const auto hybrid = [&](std::size_t W, Rows<const double> phi_k) {
    return error_of([&] {
      hybrid_attention<double>(
          {.window_size = W}, x.queries(), x.keys(), x.queries(), phi_k, x.values(), x.out());
    });
  };
  EXPECT_EQ(hybrid(0, x.keys()), "hybrid: expected a window of at least one token, found 0");
  EXPECT_EQ(hybrid(2, five), "hybrid: rows of phi_k, as k has: expected 6, found 5");
  EXPECT_EQ(error_of([] { Monomials(11, 2); }),
            "series: expected at most order 10 and 16777216 monomials, found order 11 of 2 "
            "variables");
  EXPECT_EQ(error_of([] { Monomials(10, 64); }),
            "series: expected at most order 10 and 16777216 monomials, found order 10 of 64 "
            "variables");
  EXPECT_EQ(x.y, before);
}

}  // namespace
}  // namespace hedgerow::plain
