#include "kernels/softmax_attention.hpp"

#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::expect_within_twice;
using testing::make_inputs;

class SoftmaxAttention : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(SoftmaxAttention, StaysWithinTwiceThePlainErrorAtAnyLengthAndGroup) {
  for (const std::int64_t T : {1, 63, 64, 65, 127, 128, 200}) {
    for (const std::int64_t G : {12, 4, 3}) {
      const AttentionCase shape{
          .B = 1, .H = 12, .G = G, .T = T, .D = T % 2 == 0 ? 64 : 40, .dtype = GetParam()};
      const AttentionInputs x = make_inputs(shape);
      const at::Tensor exact = softmax_attention_reference(
          x.q.to(at::kDouble), x.k.to(at::kDouble), x.v.to(at::kDouble));
      expect_within_twice(softmax_attention(x.q, x.k, x.v),
                          softmax_attention_reference(x.q, x.k, x.v),
                          exact,
                          shape.name());
      expect_within_twice(softmax_attention_trainable(x.q, x.k, x.v),
                          softmax_attention_reference(x.q, x.k, x.v),
                          exact,
                          shape.name());
    }
  }
}

TEST_P(SoftmaxAttention, HoldsAtExtremeLogits) {
  const AttentionCase shape{.B = 1, .T = 100, .D = 64, .dtype = GetParam(), .scale = 6.0};
  const AttentionInputs x = make_inputs(shape);
  const at::Tensor exact =
      softmax_attention_reference(x.q.to(at::kDouble), x.k.to(at::kDouble), x.v.to(at::kDouble));
  expect_within_twice(softmax_attention(x.q, x.k, x.v),
                      softmax_attention_reference(x.q, x.k, x.v),
                      exact,
                      shape.name());
}

TEST_P(SoftmaxAttention, IsCausalBitForBitAndReadsStridedInput) {
  const AttentionCase shape{.B = 2, .H = 4, .G = 2, .T = 130, .D = 64, .dtype = GetParam()};
  const AttentionInputs x = make_inputs(shape);
  const at::Tensor before = softmax_attention(x.q, x.k, x.v);
  const at::Tensor strided = x.k.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_TRUE(at::equal(before, softmax_attention(x.q, strided, x.v)));
  at::Tensor k = x.k.clone(), v = x.v.clone();
  k.narrow(2, 100, 1).add_(1.0);
  v.narrow(2, 100, 1).add_(1.0);
  const at::Tensor after = softmax_attention(x.q, k, v);
  EXPECT_TRUE(at::equal(before.narrow(2, 0, 100), after.narrow(2, 0, 100)));
  EXPECT_FALSE(at::equal(before.narrow(2, 100, 30), after.narrow(2, 100, 30)));
}

TEST_P(SoftmaxAttention, PropagatesNanToItsQueriesOnly) {
  const AttentionCase shape{.B = 1, .H = 2, .G = 1, .T = 80, .D = 32, .dtype = GetParam()};
  const AttentionInputs x = make_inputs(shape);
  at::Tensor q = x.q.clone();
  q[0][1][70].fill_(NAN);
  const at::Tensor y = softmax_attention(q, x.k, x.v);
  EXPECT_TRUE(y[0][1][70].isnan().all().item<bool>());
  EXPECT_EQ(y.isnan().sum().item<std::int64_t>(), 32);
}

TEST_P(SoftmaxAttention, TrainsQueriesKeysAndValues) {
  const AttentionCase shape{.B = 1, .H = 4, .G = 2, .T = 70, .D = 32, .dtype = GetParam()};
  const AttentionInputs inputs = make_inputs(shape);
  const auto plain_form = [](const AttentionInputs& x) {
    return softmax_attention_reference(x.q, x.k, x.v);
  };
  const auto gradients = [&](const AttentionInputs& x, const testing::AttentionFunction& function) {
    const at::Tensor y = function(x);
    return torch::autograd::grad({y}, {x.q, x.k, x.v}, {x.dy.to(y.scalar_type())});
  };
  const auto ours = gradients(inputs.as(shape.dtype, at::kFloat), [](const AttentionInputs& x) {
    return softmax_attention_trainable(x.q, x.k, x.v);
  });
  const auto plain = gradients(inputs.as(shape.dtype, at::kFloat), plain_form);
  const auto exact = gradients(inputs.as(at::kDouble, at::kDouble), plain_form);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    expect_within_twice(ours[i], plain[i], exact[i], shape.name() + ", d" + testing::kLeafNames[i]);
  }
}

// fp64 takes ATen's backend, as bf16 does where there is AMX: its grouped heads are the same.
TEST(SoftmaxAttentionOfATen, EqualsTheReferenceForGroupedHeads) {
  const AttentionInputs x =
      make_inputs({.B = 2, .H = 6, .G = 2, .T = 100, .D = 64}).as(at::kDouble, at::kDouble);
  EXPECT_TRUE(at::allclose(softmax_attention(x.q, x.k, x.v),
                           softmax_attention_reference(x.q, x.k, x.v).detach(),
                           0.0,
                           1e-10));
}

TEST(SoftmaxAttentionErrors, NameTheArgumentAndBothValues) {
  const AttentionInputs x = make_inputs({});
  const auto refuses =
      [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const char* part) {
        const auto names_part = ::testing::ThrowsMessage<c10::Error>(::testing::HasSubstr(part));
        EXPECT_THAT([&] { softmax_attention(q, k, v); }, names_part);
        EXPECT_THAT([&] { softmax_attention_trainable(q, k, v); }, names_part);
        EXPECT_THAT([&] { softmax_attention_reference(q, k, v); }, names_part);
      };
  refuses(x.q[0], x.k, x.v, "q must be [B, H, T, D], found [4, 65, 16]");
  refuses(x.q.to(at::kHalf), x.k, x.v, "q must be float32 or bfloat16, found Half");
  refuses(x.q, x.k.to(at::kBFloat16), x.v, "k must have q's dtype Float, found BFloat16");
  refuses(x.q, x.k, x.v.narrow(1, 0, 1), "v must have k's 2 heads, found 1");
  refuses(x.q.narrow(2, 0, 0), x.k, x.v, "q must hold at least one token, found [2, 4, 0, 16]");
}

INSTANTIATE_TEST_SUITE_P(Dtypes, SoftmaxAttention, ::testing::Values(at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace hedgerow::kernels
