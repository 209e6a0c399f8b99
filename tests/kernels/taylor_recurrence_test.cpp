#include "kernels/taylor_recurrence.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace hedgerow::kernels {
namespace {

struct Tokens {
  at::Tensor q, k, v;  // [B, H, T, D] and [B, G, T, D]
};

Tokens make_tokens(std::int64_t T, std::int64_t D) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
  const auto normal = [&](std::int64_t heads) {
    return at::randn({2, heads, T, D}, generator, at::kDouble);
  };
  return {normal(6), normal(3), normal(3)};
}

// The causal attention with sum_n s^n / n! for weights, from the scores alone.
at::Tensor polynomial_attention(const Tokens& x, std::int64_t order) {
  const at::Tensor k = x.k.repeat_interleave(2, 1), v = x.v.repeat_interleave(2, 1);
  const at::Tensor s =
      at::matmul(x.q, k.transpose(-1, -2)) / std::sqrt(static_cast<double>(x.q.size(3)));
  at::Tensor weights = at::ones_like(s), term = at::ones_like(s);
  for (std::int64_t n = 1; n <= order; ++n) {
    term = term * s / static_cast<double>(n);
    weights = weights + term;
  }
  weights = weights.tril();
  return at::matmul(weights, v) / weights.sum(-1, true);
}

at::Tensor step(const Tokens& x, std::int64_t t, TaylorState& state) {
  return taylor_step(x.q.select(2, t), x.k.select(2, t), x.v.select(2, t), state);
}

TEST(TaylorRecurrence, IsThePolynomialOfTheScoreAtAnyOrder) {
  for (const auto& [D, order] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {1, 0}, {1, 12}, {3, 4}, {4, 7}, {5, 2}, {6, 5}}) {
    const Tokens x = make_tokens(20, D);
    const at::Tensor expected = polynomial_attention(x, order);
    TaylorState state = make_taylor_state(2, 3, D, order, at::kDouble, at::kCPU);
    for (std::int64_t t = 0; t < 20; ++t) {
      const double error = (step(x, t, state) - expected.select(2, t)).abs().max().item<double>();
      EXPECT_LT(error, 1e-10) << "D " << D << ", order " << order << ", token " << t;
    }
  }
}

TEST(TaylorRecurrence, TendsToSoftmaxAsTheOrderGrows) {
  const Tokens x = make_tokens(12, 3);
  const at::Tensor k = x.k.repeat_interleave(2, 1), v = x.v.repeat_interleave(2, 1);
  const at::Tensor s = at::matmul(x.q, k.transpose(-1, -2)) / std::sqrt(3.0);
  const at::Tensor future = at::ones({12, 12}, at::kBool).triu(1);
  const at::Tensor softmax =
      at::matmul(at::softmax(s.masked_fill(future, -INFINITY), -1), v).select(2, 11);
  double error = INFINITY;
  for (const std::int64_t order : {2, 6, 14, 30}) {
    TaylorState state = make_taylor_state(2, 3, 3, order, at::kDouble, at::kCPU);
    taylor_prefill(x.k.narrow(2, 0, 11), x.v.narrow(2, 0, 11), state);
    const double next = (step(x, 11, state) - softmax).abs().max().item<double>();
    EXPECT_LT(next, error) << "order " << order;
    error = next;
  }
  EXPECT_LT(error, 1e-10);
}

TEST(TaylorRecurrence, ContinuesAPrefillFromAnySplit) {
  const Tokens x = make_tokens(30, 4);
  const at::Tensor expected = polynomial_attention(x, 4);
  for (const std::int64_t split : {1, 13, 29}) {
    TaylorState state = make_taylor_state(2, 3, 4, 4, at::kFloat, at::kCPU);
    taylor_prefill(x.k.narrow(2, 0, split).to(at::kFloat), x.v.narrow(2, 0, split), state);
    for (std::int64_t t = split; t < 30; ++t) {
      const double error = (step(x, t, state) - expected.select(2, t)).abs().max().item<double>();
      EXPECT_LT(error, 1e-5) << "split at " << split << ", token " << t;
    }
  }
}

TEST(TaylorRecurrence, RefusesAnOrderThatDoesNotFitWithTheArithmetic) {
  EXPECT_THAT([] { make_taylor_state(1, 1, 64, 10, at::kFloat, at::kCPU); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(
                  "order 10 of head_dim 64 needs C(74, 10) = 7.18407e+11 monomials times 65 sums a "
                  "head, expected at most 16777216 in all; lower the order")));
  EXPECT_EQ(make_taylor_state(1, 2, 64, 3, at::kFloat, at::kCPU).orders[3].sizes(),
            (std::vector<std::int64_t>{1, 2, 45760, 65}));
  EXPECT_THAT([] { make_taylor_state(1, 1, 4, -1, at::kFloat, at::kCPU); },
              ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr("found -1 and 4")));
}

TEST(TaylorRecurrence, NamesWhatDoesNotFit) {
  const Tokens x = make_tokens(3, 4);
  TaylorState state = make_taylor_state(2, 3, 4, 2, at::kDouble, at::kCPU);
  const auto refuses = [](const auto& call, const char* part) {
    EXPECT_THAT(call, ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(part)));
  };
  refuses([&] { taylor_prefill(x.k.narrow(1, 0, 2), x.v, state); },
          "k must be of a floating dtype and have the state's shape [2, 3, T, 4], found Double [2, "
          "2, 3, 4]");
  refuses([&] { taylor_prefill(x.k, x.v.narrow(2, 0, 1), state); }, "v must be of a floating");
  refuses([&] { taylor_prefill(x.k.to(at::kMeta), x.v, state); },
          "k must be on the state's device cpu, found meta");
  refuses(
      [&] {
        taylor_step(x.q.select(2, 0).narrow(1, 0, 4), x.k.select(2, 0), x.v.select(2, 0), state);
      },
      "q must be [2, a multiple of 3, 4]");
  TaylorState unmade;
  refuses([&] { taylor_prefill(x.k, x.v, unmade); }, "the state must be made, found none");
}

}  // namespace
}  // namespace hedgerow::kernels
