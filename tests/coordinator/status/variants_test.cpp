#include "coordinator/status/variants.hpp"

#include <gtest/gtest.h>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {
namespace {

TaskStatus done(const std::string& id, Stage stage, nlohmann::json result) {
  TaskStatus task;
  task.id = id;
  task.stage = stage;
  task.state = "done";
  task.result = std::move(result);
  return task;
}

RunStatus study() {
  using json = nlohmann::json;
  const json own = {{"layer", 0}, {"relative_mse", 0.5}, {"kept_untrained", true}};
  const json narrow = {{"student", "narrow.s0"},
                       {"relative_mse", {0.2, 0.4}},
                       {"kept_untrained", {false, true}},
                       {"trained_relative_mse", {0.2, 0.8}}};
  const json old = {{"student", "narrow.s1"}, {"relative_mse", {0.2, 0.6}}};  // an older build's
  RunStatus status;
  status.tasks.push_back(
      done("transfer/b0000", Stage::kTransfer, {{"layers", {own}}, {"variants", {narrow, old}}}));
  const json kl = {{"control", 0.3}, {"equal_window", 0.1}, {"student", 0.2}};
  status.tasks.push_back(done("evaluate/transfer",
                              Stage::kEvaluate,
                              {{"variants", {{{"student", "narrow.s0"}, {"kl", kl}}}}}));
  return status;
}

// Catches: layers of one seed alone, a window's KL taken for the control's.
TEST(Variants, CountTheLayersKeptUntrainedOfAllSeedsAndHaveTheWindowsOfTheirBytes) {
  const auto variants = variants_of(study());
  ASSERT_EQ(variants.size(), 2U);
  const VariantFigures &narrow = variants[0], &own = variants[1];
  EXPECT_EQ(narrow.name, "narrow");
  EXPECT_EQ(narrow.kept_untrained, 1);
  EXPECT_EQ(narrow.layers, 4);
  EXPECT_EQ(narrow.mean_kl.median, 0.2);
  EXPECT_EQ(narrow.window_kl, 0.1);
  EXPECT_EQ(narrow.control_kl, 0.3);
  EXPECT_EQ(own.name, storage::kOwnStudent);
  EXPECT_EQ(own.kept_untrained, 1);
  EXPECT_EQ(own.layers, 1);
  EXPECT_FALSE(own.window_kl.has_value());
}

}  // namespace
}  // namespace hedgerow::coordinator
