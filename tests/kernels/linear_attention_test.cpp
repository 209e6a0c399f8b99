#include "kernels/linear_attention.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace hedgerow::kernels {
namespace {

// The quadratic form; before: keys <= query only.
at::Tensor quadratic(const at::Tensor& phi_q,
                     const at::Tensor& phi_k,
                     const at::Tensor& v,
                     bool causal) {
  at::Tensor weights = at::matmul(phi_q, phi_k.transpose(-1, -2));
  weights = causal ? at::tril(weights) : weights;
  return at::matmul(weights, v) / (weights.sum(-1, true) + kLinearEpsilon);
}

struct Problem {
  at::Tensor phi_q, phi_k, v, dy;
};

Problem make_problem(std::int64_t T) {
  at::manual_seed(5);
  const auto leaf = [](const at::Tensor& x) { return x.set_requires_grad(true); };
  return {leaf(at::rand({2, 3, T, 12}, at::kDouble)),
          leaf(at::rand({2, 3, T, 12}, at::kDouble)),
          leaf(at::randn({2, 3, T, 7}, at::kDouble)),
          at::randn({2, 3, T, 7}, at::kDouble)};
}

TEST(LinearAttention, EqualsTheQuadraticFormInValueAndGradients) {
  for (const bool causal : {true, false}) {
    for (const std::int64_t T : {1, 63, 64, 65, 200}) {
      const Problem x = make_problem(T);
      const at::Tensor ours = causal ? causal_linear_attention(x.phi_q, x.phi_k, x.v)
                                     : bidirectional_linear_attention(x.phi_q, x.phi_k, x.v);
      const at::Tensor exact = quadratic(x.phi_q, x.phi_k, x.v, causal);
      EXPECT_LT((ours - exact).abs().max().item<double>(), 1e-12)
          << "T " << T << " causal " << causal;
      const std::vector<at::Tensor> leaves = {x.phi_q, x.phi_k, x.v};
      const std::vector<at::Tensor> found = torch::autograd::grad({ours}, leaves, {x.dy});
      const std::vector<at::Tensor> expected = torch::autograd::grad({exact}, leaves, {x.dy});
      for (std::size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_LT((found[i] - expected[i]).abs().max().item<double>(), 1e-10)
            << "T " << T << " leaf " << i;
      }
    }
  }
}

TEST(LinearAttention, IsCausalBitForBit) {
  const Problem x = make_problem(150);
  const at::Tensor before = causal_linear_attention(x.phi_q, x.phi_k, x.v);
  at::Tensor v = x.v.detach().clone();
  v.narrow(2, 100, 1).add_(1.0);
  const at::Tensor after = causal_linear_attention(x.phi_q, x.phi_k, v);
  EXPECT_TRUE(at::equal(before.narrow(2, 0, 100), after.narrow(2, 0, 100)));
  EXPECT_FALSE(at::equal(before.narrow(2, 100, 1), after.narrow(2, 100, 1)));
}

TEST(LinearAttention, KeepsTheDtypeOfItsValues) {
  const at::Tensor phi = at::rand({1, 1, 9, 4});
  EXPECT_EQ(
      causal_linear_attention(phi, phi, at::randn({1, 1, 9, 5}).to(at::kBFloat16)).scalar_type(),
      at::kBFloat16);
  EXPECT_THAT(
      [&] {
        causal_linear_attention(phi, phi, at::zeros({1, 1, 8, 5}));
      },
      ::testing::ThrowsMessage<c10::Error>(
          ::testing::HasSubstr("v must have phi_q's batch, heads and tokens")));
}

}  // namespace
}  // namespace hedgerow::kernels
