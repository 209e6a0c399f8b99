#include "coordinator/simulate/scheduled_plan.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "coordinator/plan/plan_times.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

class ScheduledPlan : public ::testing::Test {
 protected:
  ScheduledPlan() {
    model_.num_hidden_layers = 30;
    model_.hidden_size = 576;
    model_.intermediate_size = 1536;
    model_.num_attention_heads = 9;
    model_.num_key_value_heads = 3;
    model_.head_dim = 64;
    model_.vocab_size = 49152;
    model_.max_position_embeddings = 8192;
    model_.tie_word_embeddings = true;
    recipe_.data_transfer.seq_len = 512;
    recipe_.plan.shard_mib = 32;
    recipe_.transfer.max_steps = 20;
    recipe_.workers.threads = 1;
    limits_.workers = {
        {.name = "here", .workers_per_node = 2, .cores = 2, .speed = {0.2e12, 0.1e12}}};
  }

  Plan scheduled() const {
    Plan plan = make_plan(recipe_, model_, tokens_, limits_);
    schedule_stages(plan, recipe_, {model_, tokens_, limits_});
    return plan;
  }

  static const StageEstimate& stage(const Plan& plan, const std::string& name) {
    for (const StageEstimate& estimate : plan.estimates) {
      if (word_of(estimate.stage) == name) return estimate;
    }
    throw std::out_of_range(name);
  }

  storage::Recipe recipe_;
  storage::ModelConfig model_;
  PlanTokens tokens_{{80, 88, 512}, {}, {0, 8, 512}};
  PlanLimits limits_;
};

// Catches: captures told as if both workers ended together, when one has a shard of 56 sequences
// and the other one of 28: five boundaries wait for the larger shard, one after the other.
TEST_F(ScheduledPlan, CapturesTakeAsLongAsTheirLargestShardsOneAfterTheOther) {
  const Plan plan = scheduled();
  ASSERT_EQ(plan.capture.num_shards(), 2);
  ASSERT_GT(plan.capture.shard_size(0), plan.capture.shard_size(1) + 10);
  const Costs costs(recipe_, model_, tokens_, limits_);
  const double largest =
      task_seconds(plan, costs, recipe_, tokens_, limits_, TaskId::capture(0, 0), 0);
  EXPECT_NEAR(stage(plan, "capture").seconds, 5 * largest, 0.05 * largest);
}

TEST_F(ScheduledPlan, TransfersBeginWhileCapturesGoOnAndThatIsNotCountedTwice) {
  const Plan plan = scheduled();
  double stages = 0.0;
  for (const StageEstimate& estimate : plan.estimates) stages += estimate.seconds;
  EXPECT_GT(plan.overlap_seconds, 0.0);
  const Simulation simulation = simulate(simulation_of(plan, recipe_, {model_, tokens_, limits_}));
  EXPECT_NEAR(plan.seconds(), simulation.makespan_seconds + 0.4 + 0.05, 0.01) << "and their start";
  EXPECT_LT(plan.seconds(), stages);
}

TEST_F(ScheduledPlan, NoStageIsFasterThanTheSharedDisk) {
  limits_.disk_bytes_per_second = 1e5;
  const Plan plan = scheduled();
  EXPECT_GE(stage(plan, "capture").seconds, 9.0 * static_cast<double>(plan.boundary_bytes) / 1e5);
  limits_.disk_bytes_per_second = 0.0;
  EXPECT_LT(scheduled().seconds(), plan.seconds() / 10.0);
}

// Catches: a plan of a billion steps that simulates for hours what it refuses anyway.
TEST_F(ScheduledPlan, AreToldStageByStageWhereThereAreMillionsOfShards) {
  recipe_.transfer.max_steps = 1'000'000'000;
  tokens_.transfer = {4'000'000'000, 4'000'000'008, 512};
  const Plan plan = scheduled();
  EXPECT_GT(plan.capture.num_shards(), 1'000'000);
  EXPECT_GT(stage(plan, "capture").seconds, 1e6);
  EXPECT_EQ(plan.overlap_seconds, 0.0);
}

TEST_F(ScheduledPlan, WithoutASpeedNothingIsToldAndASimulationIsRefused) {
  limits_.workers.front().speed = {};
  const Plan plan = scheduled();
  EXPECT_EQ(stage(plan, "capture").seconds, 0.0);
  EXPECT_THROW(static_cast<void>(simulation_of(plan, recipe_, {model_, tokens_, limits_})),
               storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
