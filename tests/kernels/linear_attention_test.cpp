#include "kernels/linear_attention.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace hedgerow::kernels {
namespace {

// The quadratic backend; before: keys <= query only.
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

TEST(LinearAttention, OfBfloat16ValuesIsThatOfTheSameValuesInFloatRoundedOnce) {
  const Problem x = make_problem(130);
  const at::Tensor phi_q = x.phi_q.detach().to(at::kFloat), phi_k = x.phi_k.detach().to(at::kFloat);
  const at::Tensor v = x.v.detach().to(at::kBFloat16);
  for (const auto& attention : {causal_linear_attention, bidirectional_linear_attention}) {
    const at::Tensor found = attention(phi_q, phi_k, v);
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(found, attention(phi_q, phi_k, v.to(at::kFloat)).to(at::kBFloat16)));
  }
}

TEST(LinearAttention, NamesWhatDoesNotFit) {
  const at::Tensor phi = at::rand({1, 1, 9, 4}), v = at::zeros({1, 1, 9, 5});
  for (const auto& attention : {causal_linear_attention, bidirectional_linear_attention}) {
    const auto refuses = [&](const at::Tensor& phi_q,
                             const at::Tensor& phi_k,
                             const at::Tensor& values,
                             const char* part) {
      EXPECT_THAT([&] { attention(phi_q, phi_k, values); },
                  ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(part)));
    };
    refuses(phi[0], phi, v, "phi_q must be [B, H, T, F], found [1, 9, 4]");
    refuses(phi, phi.narrow(3, 0, 3), v, "phi_k must have phi_q's shape [1, 1, 9, 4], found");
    refuses(phi, phi, v.narrow(2, 0, 8), "v must have phi_q's batch, heads and tokens [1, 1, 9]");
    refuses(phi,
            phi.to(at::kDouble),
            v,
            "must both be float32 or both float64, found Float and Double");
    refuses(phi, phi, v.to(at::kInt), "v must be of a floating dtype, found Int");
  }
}

}  // namespace
}  // namespace hedgerow::kernels
