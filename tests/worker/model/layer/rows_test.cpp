#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "worker/model/layer/cpu_rows.hpp"
#include "worker/model/layer/mlp.hpp"
#include "worker/model/layer/rotary.hpp"

namespace hedgerow::worker {
namespace {

// One unit in the last place of the dtype, relative.
double tolerance(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 1.0 / 128; }

void expect_close(const at::Tensor& actual, const at::Tensor& expected, at::ScalarType dtype) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  ASSERT_EQ(actual.scalar_type(), dtype);
  const at::Tensor difference = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs();
  const at::Tensor allowed = expected.to(at::kDouble).abs() * tolerance(dtype) + 1e-6;
  EXPECT_TRUE((difference <= allowed).all().item<bool>())
      << "largest difference " << difference.max().item<double>();
}

class LayerRows : public ::testing::TestWithParam<std::tuple<at::ScalarType, std::int64_t>> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  std::int64_t width() const { return std::get<1>(GetParam()); }
  at::Tensor random(at::IntArrayRef sizes) const { return (at::randn(sizes) * 3).to(dtype()); }
};

TEST_P(LayerRows, RmsNormEqualsThePlainForm) {
  const at::Tensor x = random({2, 7, width()});
  const at::Tensor weight = at::randn({width()});
  expect_close(rms_norm(x, weight, 1e-5), plain_rms_norm(x, weight, 1e-5), dtype());
}

TEST_P(LayerRows, TheNormOfASumReadsTheRoundedSum) {
  const at::Tensor residual = random({1, 5, width()}), update = random({1, 5, width()});
  const at::Tensor weight = at::randn({width()});
  const Normed both = add_rms_norm(residual, update, weight, 1e-5);
  EXPECT_TRUE(at::equal(both.hidden_states, residual + update));
  EXPECT_TRUE(at::equal(both.normed, rms_norm(both.hidden_states, weight, 1e-5)));
}

TEST_P(LayerRows, ResidualIsRoundedToTheStreamAsAShardWouldRoundIt) {
  const at::Tensor residual = random({1, 5, width()}), update = random({1, 5, width()});
  for (const at::ScalarType stream : {at::kBFloat16, at::kHalf, at::kFloat}) {
    EXPECT_TRUE(
        at::equal(add_round(residual, update, stream), plain_add_round(residual, update, stream)))
        << c10::toString(stream);
  }
}

TEST_P(LayerRows, SwigluEqualsThePlainFormAlsoFarFromZero) {
  at::Tensor x = random({3, 4, 2 * width()});
  x[0] *= 40;  // exp(-gate) overflows or vanishes
  expect_close(swiglu(x), plain_swiglu(x), dtype());
}

TEST_P(LayerRows, HeadsAreSplitNormedAndRotatedAsThePlainForm) {
  const std::int64_t heads = 6, kv_heads = 2, dim = 16, tokens = 9;
  const at::Tensor qkv = random({3, tokens, (heads + 2 * kv_heads) * dim});
  const at::Tensor angles = at::randn({tokens, dim / 2});
  const at::Tensor cos = at::cat({angles, angles}, -1).cos(),
                   sin = at::cat({angles, angles}, -1).sin();
  for (const bool normed : {false, true}) {
    const HeadNorms norms{
        normed ? at::randn({dim}) : at::Tensor(), normed ? at::randn({dim}) : at::Tensor(), 1e-6};
    const Qkv fused = split_heads(qkv, heads, kv_heads, {cos, sin}, norms);
    const Qkv plain = plain_split_heads(qkv, heads, kv_heads, {cos, sin}, norms);
    // Rotation subtracts: the error is relative to the vector's length, not to the difference.
    const double allowed = tolerance(dtype()) * 12;
    EXPECT_LT((fused.q.to(at::kFloat) - plain.q.to(at::kFloat)).abs().max().item<double>(),
              allowed);
    EXPECT_LT((fused.k.to(at::kFloat) - plain.k.to(at::kFloat)).abs().max().item<double>(),
              allowed);
    EXPECT_TRUE(at::equal(fused.v, plain.v));
  }
}

TEST_P(LayerRows, ARowDoesNotDependOnItsNeighboursNorOnTheThreads) {
  const at::Tensor x = random({64, width()});
  const at::Tensor weight = at::randn({width()});
  const at::Tensor all = rms_norm(x, weight, 1e-5);
  EXPECT_TRUE(at::equal(rms_norm(x.narrow(0, 37, 1), weight, 1e-5), all.narrow(0, 37, 1)));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(rms_norm(x, weight, 1e-5), all));
  at::set_num_threads(threads);
}

TEST(LayerRowsSpecial, NanStaysNanInBf16) {
  const at::Tensor x = at::full({1, 32}, std::numeric_limits<float>::quiet_NaN()).to(at::kBFloat16);
  EXPECT_TRUE(add_round(x, x, at::kBFloat16).isnan().all().item<bool>());
}

TEST(FewRows, EqualTheProductInFp64AndAreTheSameAloneWhateverTheThreads) {
  at::manual_seed(5);
  for (const auto& [out, in] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {4, 32}, {960, 576}, {576, 1536}, {8192, 96}}) {
    const at::Tensor weight = at::randn({out, in}).to(at::kBFloat16);
    for (const at::Tensor& bias : {at::Tensor(), at::randn({out}).to(at::kBFloat16)}) {
      const at::Tensor x = at::randn({1, 3, in}).to(at::kBFloat16);
      ASSERT_TRUE(cpu::takes_few_rows(x, weight));
      const at::Tensor y = cpu::few_rows_product(x, weight, bias);
      at::Tensor exact = at::matmul(x.to(at::kDouble), weight.to(at::kDouble).t());
      if (bias.defined()) exact += bias.to(at::kDouble);
      // Half a unit in the last place, beside what fp32 sums lose.
      const at::Tensor allowed = exact.abs() / 256 + 1e-5 * std::sqrt(static_cast<double>(in));
      EXPECT_TRUE(((y.to(at::kDouble) - exact).abs() <= allowed).all().item<bool>());
      const int threads = at::get_num_threads();
      at::set_num_threads(1);
      for (std::int64_t row = 0; row < 3; ++row) {
        const at::Tensor alone = cpu::few_rows_product(x.narrow(1, row, 1), weight, bias);
        EXPECT_TRUE(at::equal(alone, y.narrow(1, row, 1))) << out << " x " << in;
      }
      at::set_num_threads(threads);
    }
  }
}

TEST(FewRows, LeaveToOthersWhatTheyDoNotTake) {
  const auto bf16 = [](at::IntArrayRef sizes) { return at::ones(sizes, at::kBFloat16); };
  EXPECT_FALSE(cpu::takes_few_rows(bf16({1, 4, 64}), bf16({8, 64}))) << "four rows";
  EXPECT_FALSE(cpu::takes_few_rows(bf16({1, 48}), bf16({8, 48})));
  EXPECT_FALSE(cpu::takes_few_rows(bf16({1, 64}), bf16({6, 64})));
  EXPECT_FALSE(cpu::takes_few_rows(at::ones({1, 64}), at::ones({8, 64}))) << "fp32";
  EXPECT_FALSE(cpu::takes_few_rows(bf16({1, 64}), bf16({64, 8}).t())) << "strided";
}

INSTANTIATE_TEST_SUITE_P(All,
                         LayerRows,
                         ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16),
                                            ::testing::Values(64, 53, 576)));

}  // namespace
}  // namespace hedgerow::worker
