#include "coordinator/cli/terminal/task_scores.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/status/task_scores.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json task(const std::string& metric, double student, double window) {
  const auto figures = [&](double value) -> nlohmann::json {
    return {{"metrics", {{metric, {{"value", value}, {"stderr", 0.05}}}}}};
  };
  return {
      {"samples", 20},
      {"shots", 0},
      {"subjects",
       {{"teacher", figures(0.9)}, {"equal_window", figures(window)}, {"lora", figures(student)}}}};
}

nlohmann::json scores() {
  return {{"lm_eval", "0.4.13"},
          {"tasks",
           {{"passkey", task("exact_match", 0.25, 0.5)},
            {"piqa", task("acc", 0.7, 0.6)},
            {"wikitext", task("word_perplexity", 30.0, 25.0)}}}};
}

TEST(TaskScores, SubjectsStandInTheirOrderEachWithItsStandardError) {
  const auto lines = task_score_lines(scores(), 120);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[0], HasSubstr("teacher"));
  EXPECT_LT(lines[0].find("teacher"), lines[0].find("equal bytes"));
  EXPECT_LT(lines[0].find("equal bytes"), lines[0].find("lora"));
  EXPECT_THAT(lines[1], HasSubstr("0.25 +-0.05"));
  EXPECT_TRUE(task_score_lines(nlohmann::json::object(), 120).empty());
  EXPECT_THAT(task_score_markdown(scores()), HasSubstr("| passkey | exact_match | 20 | 0 | 0.9"));
}

TEST(TaskScores, AStudentUnderTheWindowOfItsBytesIsSaidToBeUnderIt) {
  EXPECT_THAT(task_verdicts(scores()),
              ElementsAre(HasSubstr("passkey, exact_match: the student (0.25) is under"),
                          HasSubstr("wikitext, word_perplexity: the student (30) is under")));
}

TEST(TaskScores, ARunKeepsTheTasksOfEarlierCalls) {
  const tests::TemporaryDirectory directory;
  const storage::RunLayout layout(directory.path());
  EXPECT_TRUE(read_task_scores(layout).empty());
  record_task_scores(layout, scores());
  record_task_scores(layout, {{"lm_eval", "0.4.13"}, {"tasks", {{"piqa", task("acc", 0.8, 0.6)}}}});
  const nlohmann::json kept = read_task_scores(layout);
  EXPECT_EQ(kept["tasks"].size(), 3U);
  EXPECT_EQ(kept["tasks"]["piqa"]["subjects"]["lora"]["metrics"]["acc"]["value"], 0.8);
  storage::write_atomically(layout.task_scores(), "[]");
  EXPECT_THROW(static_cast<void>(read_task_scores(layout)), storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
