#include "worker/transfer/attention_rows.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "kernels/reference.hpp"

namespace hedgerow::worker {
namespace {

using kernels::HybridOptions;
using kernels::WindowLayout;

constexpr std::int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 8;

struct Case {
  at::Tensor q, k;  // [H, T, D], [G, T, D]
  kernels::HybridParameters parameters;
  HybridOptions options;

  [[nodiscard]] kernels::HybridWeights reference() const {
    return kernels::hybrid_weights_reference(q.unsqueeze(0), k.unsqueeze(0), {}, parameters, options);
  }
};

Case make_case(std::int64_t T, WindowLayout layout, std::int64_t num_sinks, bool shares_key_maps) {
  at::manual_seed(5);
  const std::int64_t key_heads = shares_key_maps ? kKvHeads : kHeads;
  Case made;
  made.q = at::randn({kHeads, T, kHeadDim});
  made.k = at::randn({kKvHeads, T, kHeadDim});
  made.parameters.q = {at::randn({kHeads, kHeadDim, 4}), at::randn({kHeads, 4})};
  made.parameters.k = {at::randn({key_heads, kHeadDim, 4}), at::randn({key_heads, 4})};
  made.options.window = layout;
  made.options.window_size = 8;
  made.options.num_sinks = num_sinks;
  if (layout != WindowLayout::kNone) made.parameters.window_factors = at::randn({kHeads});
  return made;
}

// Lengths within and beyond a window, beyond the rows that are sampled, and beyond a tile of keys.
void for_each_case(const std::function<void(const Case&, const std::string&)>& visit) {
  for (const std::int64_t T : {1, 7, 40, 100, 600}) {
    for (const WindowLayout layout :
         {WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone}) {
      for (const std::int64_t num_sinks : {0, 3}) {
        if (num_sinks > 0 && layout == WindowLayout::kNone) continue;
        for (const bool shares : {false, true}) {
          visit(make_case(T, layout, num_sinks, shares),
                std::string(kernels::to_string(layout)) + ", T = " + std::to_string(T) + ", " +
                    std::to_string(num_sinks) + " sinks, " + (shares ? "shared" : "own") +
                    " key maps");
        }
      }
    }
  }
}

at::Tensor of_rows(const at::Tensor& weights, const std::vector<std::int64_t>& rows) {
  return weights[0].index_select(1, at::tensor(rows, at::kLong));
}

TEST(AttentionRows, AreSpreadEvenlyAndEndWithTheLastToken) {
  EXPECT_EQ(sampled_rows(1), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(sampled_rows(3), (std::vector<std::int64_t>{0, 1, 2}));
  const std::vector<std::int64_t> rows = sampled_rows(1000);
  ASSERT_EQ(rows.size(), 64U);
  EXPECT_EQ(rows.back(), 999);
  for (std::size_t i = 1; i < rows.size(); ++i) {
    EXPECT_GE(rows[i] - rows[i - 1], 15);
    EXPECT_LE(rows[i] - rows[i - 1], 16);
  }
}

TEST(AttentionRows, StudentsWeightsAreThoseOfTheReference) {
  for_each_case([](const Case& made, const std::string& name) {
    const std::vector<std::int64_t> rows = sampled_rows(made.q.size(1));
    const StudentRows student = student_rows(made.q, made.k, made.parameters, made.options, rows);
    const kernels::HybridWeights expected = made.reference();
    EXPECT_EQ(student.window.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(
        student.window, of_rows(expected.window / expected.denominator, rows), 1e-5, 1e-6))
        << name;
    EXPECT_TRUE(at::allclose(
        student.linear, of_rows(expected.linear / expected.denominator, rows), 1e-5, 1e-6))
        << name;
  });
}

TEST(AttentionRows, OfTeacherAndStudentSumToOneAndNeverSeeALaterKey) {
  for_each_case([](const Case& made, const std::string& name) {
    const std::int64_t T = made.q.size(1);
    const std::vector<std::int64_t> rows = sampled_rows(T);
    const StudentRows student = student_rows(made.q, made.k, made.parameters, made.options, rows);
    const at::Tensor later =
        at::arange(T).unsqueeze(0).gt(at::tensor(rows, at::kLong).unsqueeze(1));
    for (const at::Tensor& weights :
         {teacher_rows(made.q, made.k, rows), student.window + student.linear}) {
      EXPECT_EQ(weights.sizes(), (std::vector<std::int64_t>{kHeads, std::ssize(rows), T})) << name;
      EXPECT_LT((weights.sum(-1) - 1).abs().max().item<double>(), 1e-5) << name;
      EXPECT_EQ(weights.masked_select(later).abs().sum().item<double>(), 0.0) << name;
    }
  });
}

TEST(AttentionRows, TeachersWeightsAreTheSoftmaxInFp32AlsoOfBf16) {
  const Case made = make_case(100, WindowLayout::kTerraced, 3, true);
  const std::vector<std::int64_t> rows = sampled_rows(100);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor q = made.q.to(dtype), k = made.k.to(dtype);
    const at::Tensor scores =
        at::matmul(q.to(at::kDouble),
                   k.to(at::kDouble).repeat_interleave(kHeads / kKvHeads, 0).transpose(-1, -2)) /
        std::sqrt(static_cast<double>(kHeadDim));
    const at::Tensor future = at::ones({100, 100}, at::kBool).triu(1);
    const at::Tensor expected = at::softmax(scores.masked_fill(future, -INFINITY), -1)
                                    .index_select(1, at::tensor(rows, at::kLong));
    EXPECT_TRUE(at::allclose(teacher_rows(q, k, rows), expected.to(at::kFloat), 1e-5, 1e-6));
    const StudentRows student = student_rows(q, k, made.parameters, made.options, rows);
    EXPECT_EQ(student.linear.scalar_type(), at::kFloat);
  }
}

TEST(AttentionRows, SharesSumToOneAndAreTheWeightOfTheirKeys) {
  for_each_case([](const Case& made, const std::string& name) {
    const std::int64_t T = made.q.size(1), sinks = std::min(made.options.num_sinks, T);
    const std::vector<std::int64_t> rows = sampled_rows(T);
    const AttentionShares shares = attention_shares(
        student_rows(made.q, made.k, made.parameters, made.options, rows), made.options.num_sinks);
    EXPECT_NEAR(shares.window + shares.sinks + shares.linear, 1.0, 1e-5) << name;
    const kernels::HybridWeights weights = made.reference();
    const at::Tensor window = of_rows(weights.window / weights.denominator, rows);
    EXPECT_NEAR(shares.sinks, window.narrow(2, 0, sinks).sum(-1).mean().item<double>(), 1e-5)
        << name;
    EXPECT_NEAR(shares.window + shares.sinks, window.sum(-1).mean().item<double>(), 1e-5) << name;
    EXPECT_EQ(shares.sinks > 0.0, made.options.num_sinks > 0) << name;
    EXPECT_EQ(shares.linear > 0.0, weights.linear.ne(0).any().item<bool>()) << name;
  });
}

TEST(AttentionRows, AShareOfAllRowsIsThatOfTheKernel) {
  const Case made = make_case(60, WindowLayout::kTerraced, 3, true);
  const AttentionShares shares = attention_shares(
      student_rows(made.q, made.k, made.parameters, made.options, sampled_rows(60)), 3);
  const double expected =
      kernels::linear_share(made.q.unsqueeze(0), made.k.unsqueeze(0), made.parameters, made.options)
          .mean()
          .item<double>();
  EXPECT_NEAR(shares.linear, expected, 1e-5);
}

TEST(AttentionRows, AMapSumsItsKeysIntoColumnsOnALogarithmicScaleOfBytes) {
  // Five columns: no pooling. 1 -> 255, 0.1 -> 191, 0.02 -> 147, 1e-4 and less -> 0.
  const at::Tensor few = at::tensor({1.0F, 0.1F, 0.02F, 1e-4F, 0.0F}).reshape({1, 1, 5});
  const std::vector<nlohmann::json> maps = attention_maps(few, few.flip(2));
  ASSERT_EQ(maps.size(), 1U);
  EXPECT_EQ(maps[0].at("rows"), 1);
  EXPECT_EQ(maps[0].at("columns"), 5);
  EXPECT_EQ(maps[0].at("softmax"), "/7+TAAA=");
  EXPECT_EQ(maps[0].at("student"), "AACTv/8=");
  // 128 keys of 1/128: two a column, 1 + log10(1 / 64) / 4 = 0.5485 -> 140 = 0x8C.
  const at::Tensor many = at::full({1, 2, 128}, 1.0 / 128);
  const nlohmann::json pooled = attention_maps(many, many).at(0);
  EXPECT_EQ(pooled.at("rows"), 2);
  EXPECT_EQ(pooled.at("columns"), 64);
  std::string expected;
  for (int i = 0; i < 42; ++i) expected += "jIyM";
  EXPECT_EQ(pooled.at("softmax"), expected + "jIw=");
}

TEST(AttentionRows, MapsAreOfEightHeadsSpreadEvenlyOrOfAllWhereThereAreFewer) {
  const auto heads = [](std::int64_t H) {
    const at::Tensor weights = at::full({H, 1, 1}, 1.0);
    std::vector<int> found;
    for (const nlohmann::json& map : attention_maps(weights, weights))
      found.push_back(map.at("head"));
    return found;
  };
  EXPECT_EQ(heads(3), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(heads(9), (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(heads(32), (std::vector<int>{0, 4, 8, 12, 16, 20, 24, 28}));
}

}  // namespace
}  // namespace hedgerow::worker
