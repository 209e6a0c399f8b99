#include "coordinator/plan/recorded_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator {
namespace {

using ::testing::HasSubstr;

class RecordedPlanTest : public ::testing::Test {
 protected:
  static RecordedPlan recorded_of_two_kinds() {
    Plan plan;
    plan.estimates = {{.stage = Stage::kCapture,
                       .seconds = 60.0,
                       .gpu_hours = 0.5,
                       .cost = 3.0,
                       .memory_bytes = 672,
                       .disk_bytes = 4000},
                      {.stage = Stage::kTransfer, .seconds = 30.0, .memory_bytes = 900}};
    WorkerKind measured{.name = "a", .nodes = 2, .on_gpu = true, .price_per_hour = 10.0};
    measured.measured = "on Monday";
    WorkerKind assumed{.name = "b", .nodes = 3, .on_gpu = true, .price_per_hour = 1.0};
    plan.workers = {measured, assumed};
    return recorded(plan);
  }

  tests::TemporaryDirectory directory_;
  storage::RunLayout layout_{directory_.path()};
};

TEST_F(RecordedPlanTest, IsReadAsItWasWritten) {
  const RecordedPlan plan = recorded_of_two_kinds();
  EXPECT_DOUBLE_EQ(plan.price_per_hour, 23.0);
  EXPECT_DOUBLE_EQ(plan.seconds, 90.0);
  EXPECT_TRUE(plan.on_gpus);
  EXPECT_FALSE(plan.measured) << "one kind is assumed";
  write_plan(layout_, plan);
  const std::optional<RecordedPlan> read = read_plan(layout_);
  ASSERT_TRUE(read);
  EXPECT_EQ(*read, plan);
  ASSERT_NE(read->find(Stage::kTransfer), nullptr);
  EXPECT_EQ(read->find(Stage::kTransfer)->memory_bytes, 900U);
  EXPECT_EQ(read->find(Stage::kFinetune), nullptr);
}

TEST_F(RecordedPlanTest, OfARunThatAnOlderBuildBeganThereIsNone) {
  std::string problem;
  EXPECT_FALSE(read_plan(layout_, problem));
  EXPECT_EQ(problem, "");
}

TEST_F(RecordedPlanTest, ADamagedOneIsNamedAndNotShown) {
  write_plan(layout_, recorded_of_two_kinds());
  const std::string whole = storage::read_text(layout_.plan());
  const auto problem_of = [&](const std::string& text) {
    storage::write_atomically(layout_.plan(), text);
    std::string problem;
    EXPECT_FALSE(read_plan(layout_, problem)) << text;
    EXPECT_THROW(static_cast<void>(read_plan(layout_)), storage::Error);
    return problem;
  };
  EXPECT_THAT(problem_of(whole.substr(0, whole.size() / 2)), HasSubstr("plan.json cannot be read"));
  EXPECT_THAT(problem_of(""), HasSubstr("plan.json cannot be read"));
  EXPECT_THAT(problem_of(R"({"format": "recorded-plan/2"})"),
              HasSubstr("format is \"recorded-plan/2\", expected \"recorded-plan/1\""));
  EXPECT_THAT(problem_of(R"({"format": "recorded-plan/1", "seconds": -1})"), HasSubstr("seconds"));
  EXPECT_THAT(problem_of(R"({"format": "recorded-plan/1", "seconds": 1, "workers": [7],
                             "prices": 0, "measured": true, "stages": []})"),
              HasSubstr("on_gpu"));
  std::filesystem::remove(layout_.plan());
  std::filesystem::create_directory(layout_.plan());
  std::string problem;
  EXPECT_FALSE(read_plan(layout_, problem));
  EXPECT_THAT(problem, HasSubstr("plan.json"));
}

}  // namespace
}  // namespace hedgerow::coordinator
