#include "worker/generate/sampler.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

// Probabilities 0.5, 0.25, 0.15, 0.1 at temperature 1.
const std::array<float, 4> kLogits = {
    std::log(0.25F), std::log(0.5F), std::log(0.1F), std::log(0.15F)};

std::map<std::int64_t, double> shares(const SamplingOptions& options) {
  constexpr int kDraws = 4000;
  std::map<std::int64_t, double> counts;
  for (int i = 0; i < kDraws; ++i) counts[sample(kLogits, options, i % 7, i)] += 1.0 / kDraws;
  return counts;
}

TEST(Sampler, TemperatureZeroIsTheFirstOfEqualMaxima) {
  const std::array<float, 4> logits = {1.0F, 3.0F, 3.0F, 2.0F};
  EXPECT_EQ(sample(logits, {}, 0, 0), 1);
}

TEST(Sampler, TemperatureOneDrawsTheProbabilities) {
  auto counts = shares({.temperature = 1.0, .seed = 5});
  EXPECT_NEAR(counts[1], 0.5, 0.04);
  EXPECT_NEAR(counts[0], 0.25, 0.04);
  EXPECT_NEAR(counts[3], 0.15, 0.04);
  EXPECT_NEAR(counts[2], 0.1, 0.04);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatHoldsTheProbability) {
  auto counts = shares({.temperature = 1.0, .top_p = 0.7, .seed = 5});
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_NEAR(counts[1], 2.0 / 3.0, 0.04);
  EXPECT_NEAR(counts[0], 1.0 / 3.0, 0.04);
  EXPECT_EQ(shares({.temperature = 1.0, .top_p = 1e-9}).size(), 1U);
}

TEST(Sampler, LowTemperatureSharpens) {
  auto counts = shares({.temperature = 0.25, .seed = 5});
  EXPECT_NEAR(counts[1], 0.9282, 0.03);  // 0.5^4 / (0.5^4 + 0.25^4 + 0.15^4 + 0.1^4)
}

TEST(Sampler, AChoiceIsAFunctionOfSeedRowAndPosition) {
  const SamplingOptions options{.temperature = 1.0, .seed = 9};
  bool row_matters = false, position_matters = false, seed_matters = false;
  for (int i = 0; i < 64; ++i) {
    const auto choice = sample(kLogits, options, 3, i);
    EXPECT_EQ(sample(kLogits, options, 3, i), choice);
    row_matters |= sample(kLogits, options, 4, i) != choice;
    position_matters |= sample(kLogits, options, 3, i + 1000) != choice;
    seed_matters |= sample(kLogits, {.temperature = 1.0, .seed = 10}, 3, i) != choice;
  }
  EXPECT_TRUE(row_matters && position_matters && seed_matters);
}

TEST(Sampler, OptionsOutOfRangeAreRefused) {
  EXPECT_THROW(SamplingOptions{.temperature = -1.0}.validate(), storage::Error);
  EXPECT_THROW(SamplingOptions{.top_p = 0.0}.validate(), storage::Error);
  EXPECT_THROW(SamplingOptions{.top_p = 1.5}.validate(), storage::Error);
  EXPECT_NO_THROW(SamplingOptions{}.validate());
}

}  // namespace
}  // namespace hedgerow::worker
