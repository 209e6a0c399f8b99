#include "storage/recipe/capture_plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::int64_t kHidden = 576;

Recipe recipe_with(int max_steps, bool shuffle = false) {
  Recipe recipe;
  recipe.data_transfer.seq_len = 512;
  recipe.transfer.max_steps = max_steps;
  recipe.transfer.shuffle = shuffle;
  return recipe;
}

TEST(CapturePlan, CapturesOnlyWhatTheStepBudgetVisitsAndThenValidation) {
  const CapturePlan plan = make_capture_plan(recipe_with(60), 1000, 1008, kHidden);
  EXPECT_EQ(plan.num_train, 240);
  EXPECT_EQ(plan.num_validation, 4);
  EXPECT_EQ(plan.token_sequence(239), 239);
  EXPECT_EQ(plan.token_sequence(240), 1000) << "validation follows at once in capture order";
  EXPECT_EQ(plan.validation_capture_index(3), 243);
  EXPECT_EQ(plan.token_sequence(243), 1003);
  EXPECT_THROW((void)plan.token_sequence(244), Error);
  EXPECT_THROW((void)plan.token_sequence(-1), Error);
}

TEST(CapturePlan, WithoutTransferStepsOnlyValidationIsCaptured) {
  const CapturePlan plan = make_capture_plan(recipe_with(0), 1000, 1008, kHidden);
  EXPECT_EQ(plan.num_train, 0);
  EXPECT_EQ(plan.num_sequences(), 4);
  EXPECT_EQ(plan.token_sequence(0), 1000);
  EXPECT_EQ(plan.validation_capture_index(3), 3);
}

TEST(CapturePlan, ShardsCoverEverySequenceOnceAndStartAtForwardBorders) {
  for (const int shard_mib : {1, 3, 8, 256}) {
    Recipe recipe = recipe_with(60);
    recipe.plan.shard_mib = shard_mib;
    const CapturePlan plan = make_capture_plan(recipe, 1000, 1008, kHidden);
    std::int64_t next = 0;
    for (int shard = 0; shard < plan.num_shards(); ++shard) {
      EXPECT_EQ(plan.shard_begin(shard), next);
      EXPECT_EQ(plan.shard_begin(shard) % plan.sequences_per_forward, 0) << shard_mib;
      EXPECT_GT(plan.shard_size(shard), 0);
      next += plan.shard_size(shard);
    }
    EXPECT_EQ(next, plan.num_sequences()) << shard_mib;
    EXPECT_EQ(plan.num_train % plan.sequences_per_forward, 0)
        << "validation starts a forward of its own";
  }
}

TEST(CapturePlan, ShardBytesStayUnderTheRecipesSizeUnlessOneForwardIsLarger) {
  Recipe recipe = recipe_with(60);
  recipe.plan.shard_mib = 8;
  const std::int64_t bytes_per_sequence = 512 * kHidden * 2;
  CapturePlan plan = make_capture_plan(recipe, 1000, 1008, kHidden);
  EXPECT_LE(plan.sequences_per_shard * bytes_per_sequence, 8 << 20);
  EXPECT_EQ(plan.sequences_per_shard, 12);
  recipe.plan.shard_dtype = "fp32";
  EXPECT_EQ(make_capture_plan(recipe, 1000, 1008, kHidden).sequences_per_shard, 4);
  recipe.plan.shard_mib = 1;
  EXPECT_EQ(make_capture_plan(recipe, 1000, 1008, kHidden).sequences_per_shard, 4);
}

TEST(CapturePlan, ShortDataGivesWholeStepsOnlyAndTooShortDataIsRefused) {
  EXPECT_EQ(make_capture_plan(recipe_with(60), 10, 18, kHidden).num_train, 8);
  EXPECT_THROW((void)make_capture_plan(recipe_with(60), 3, 11, kHidden), Error);
  EXPECT_THROW((void)make_capture_plan(recipe_with(60), 100, 100, kHidden), Error)
      << "no validation";
  EXPECT_EQ(make_capture_plan(recipe_with(60), 100, 102, kHidden).num_validation, 2);
}

TEST(StepSequences, FollowTheFileAndBeginAgainAfterTheLastWholeStep) {
  const Recipe recipe = recipe_with(60);
  const CapturePlan plan = make_capture_plan(recipe, 10, 18, kHidden);
  EXPECT_EQ(step_sequences(recipe, plan, 0), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(step_sequences(recipe, plan, 1), (std::vector<std::int64_t>{4, 5, 6, 7}));
  EXPECT_EQ(step_sequences(recipe, plan, 2), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

std::vector<std::int64_t> epoch_order(const Recipe& recipe,
                                      const CapturePlan& plan,
                                      std::int64_t epoch) {
  std::vector<std::int64_t> order;
  const std::int64_t steps = plan.num_train / recipe.transfer.sequences_per_step;
  for (std::int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
    const std::vector<std::int64_t> part = step_sequences(recipe, plan, step);
    order.insert(order.end(), part.begin(), part.end());
  }
  return order;
}

TEST(StepSequences, AShuffledEpochVisitsEverySequenceOnceAndTheNextOneInAnotherOrder) {
  const Recipe recipe = recipe_with(10'000, true);
  const CapturePlan plan =
      make_capture_plan(recipe, 2500, 2508, kHidden);  // three windows, the last one short
  ASSERT_EQ(plan.num_train, 2500);
  const std::vector<std::int64_t> order = epoch_order(recipe, plan, 0);
  std::vector<std::int64_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::int64_t> all(2500);
  std::iota(all.begin(), all.end(), std::int64_t{0});
  EXPECT_EQ(sorted, all);
  EXPECT_NE(order, all);
  EXPECT_NE(epoch_order(recipe, plan, 1), order);
  Recipe other_seed = recipe;
  other_seed.seed = 1;
  EXPECT_NE(epoch_order(other_seed, plan, 0), order);
}

TEST(StepSequences, TheShuffledOrderDoesNotDependOnShards) {
  Recipe recipe = recipe_with(100, true);
  const CapturePlan large = make_capture_plan(recipe, 400, 408, kHidden);
  recipe.plan.shard_mib = 1;
  const CapturePlan small = make_capture_plan(recipe, 400, 408, kHidden);
  ASSERT_NE(large.sequences_per_shard, small.sequences_per_shard);
  EXPECT_EQ(step_sequences(recipe, large, 7), step_sequences(recipe, small, 7));
}

}  // namespace
}  // namespace hedgerow::storage
