#include "coordinator/cli/terminal/control.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/cli/terminal/screen.hpp"

namespace hedgerow::coordinator::cli {
namespace {

nlohmann::json column(double perplexity, double beyond, double kl, double top1) {
  return {{"perplexity", perplexity},
          {"kl", kl},
          {"top1", top1},
          {"beyond", {{"perplexity", beyond}, {"kl", kl}, {"top1", top1}, {"targets", 100}}}};
}

// The evaluation of a student whose perplexity beyond 128 tokens is `beyond`; its control's is
// 13.4.
nlohmann::json evaluation_of(const char* subject, double beyond, int num_sinks = 4) {
  return {{"subject", subject},
          {"perplexity", 14.25},
          {"beyond", 128},
          {"gap_closed", 0.625},
          {"control", {{"window_size", 64}, {"num_sinks", num_sinks}}},
          {"columns",
           {{"teacher", column(12.5, 11.5, 0.0, 1.0)},
            {"control", column(13.75, 13.4, 0.125, 0.75)},
            {"student", column(14.25, beyond, 0.0625, 0.875)},
            {"linear_off", column(15.5, 14.5, 0.25, 0.5)}}}};
}

RunStatus run_with(const char* subject, const nlohmann::json& result) {
  RunStatus status;
  status.run = "run";
  status.state = "done";
  TaskStatus task;
  task.id = std::string("evaluate/") + subject;
  task.stage = Stage::kEvaluate;
  task.state = "done";
  task.result = result;
  status.tasks.push_back(task);
  return status;
}

std::string text_of(const std::vector<std::string>& lines) {
  std::string text = "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(Control, TheWindowOfEqualBytesAndTheStudentWithoutItsCacheHaveALine) {
  nlohmann::json evaluation = evaluation_of("transfer", 12.0);
  evaluation["control"]["equal_window"] = 162;
  evaluation["columns"].erase("linear_off");
  evaluation["columns"]["equal_window"] = column(13.0, 12.5, 0.0625, 0.875);
  evaluation["columns"]["recall_off"] = column(14.5, 12.75, 0.125, 0.75);
  EXPECT_EQ(text_of(column_lines(evaluation, 80)), R"(
column          perplexity  beyond 128      KL   top-1  gap closed
teacher               12.5        11.5       0  100.0%
control              13.75        13.4   0.125   75.0%
window of 162           13        12.5  0.0625   87.5%
without recall        14.5       12.75   0.125   75.0%
transfer             14.25          12  0.0625   87.5%       62.5%
)");
}

TEST(Control, ColumnsStandBelowEachOtherWithTheGapOfTheStudent) {
  EXPECT_EQ(text_of(column_lines(evaluation_of("lora", 12.0), 80)), R"(
column      perplexity  beyond 128      KL   top-1  gap closed
teacher           12.5        11.5       0  100.0%
control          13.75        13.4   0.125   75.0%
lora             14.25          12  0.0625   87.5%       62.5%
linear off        15.5        14.5    0.25   50.0%
)");
}

TEST(Control, ATeacherAloneHasNeitherGapNorPositionsBeyondAWindow) {
  const nlohmann::json alone = {
      {"subject", "teacher"},
      {"columns", {{"teacher", {{"perplexity", 12.5}, {"kl", 0}, {"top1", 1}}}}}};
  EXPECT_EQ(text_of(column_lines(alone, 80)), R"(
column   perplexity  KL   top-1
teacher        12.5   0  100.0%
)");
  EXPECT_TRUE(column_lines(nlohmann::json{{"perplexity", 12.5}}, 80).empty())
      << "of an earlier build";
}

TEST(Control, AStudentThatDoesNotBeatItIsToldSoWithWhatHelps) {
  EXPECT_EQ(control_verdict(evaluation_of("transfer", 15.1)),
            "the student does not beat its control (window of 64 and 4 sinks, untrained): "
            "perplexity beyond 128 tokens 15.1 against 13.4; more steps (transfer.max_steps) help "
            "most, then attention.feature_dim");
  EXPECT_NE(control_verdict(evaluation_of("transfer", 15.1, 0)).find("(window of 64, untrained)"),
            std::string::npos);
  EXPECT_EQ(control_verdict(evaluation_of("transfer", 13.0)), "");
  EXPECT_EQ(control_verdict(nlohmann::json{{"perplexity", 12.5}}), "") << "nobody knows";
}

TEST(Control, TheVerdictOfARunIsThatOfItsLastEvaluation) {
  RunStatus status = run_with("transfer", evaluation_of("transfer", 15.1));
  EXPECT_NE(control_verdict(status), "");
  status.tasks.push_back(run_with("lora", evaluation_of("lora", 12.0)).tasks.front());
  EXPECT_EQ(control_verdict(status), "");
  EXPECT_EQ(control_verdict(RunStatus{}), "");
}

TEST(Control, StatusShowsItBesideThePerplexities) {
  RunStatus status = run_with("transfer", evaluation_of("transfer", 12.0));
  nlohmann::json teacher = evaluation_of("teacher", 12.0);
  teacher["perplexity"] = 12.5;
  teacher.erase("gap_closed");
  status.tasks.push_back(run_with("teacher", teacher).tasks.front());
  EXPECT_EQ(text_of(whole_view(status, 80)), R"(
run run: done

evaluated  perplexity  control  gap closed
teacher          12.5    13.75           -
transfer        14.25    13.75       62.5%
)");
}

TEST(Control, EachTextHasARowWithItsDomainAndIsNamedWhereTheControlIsNotBeaten) {
  nlohmann::json evaluation = evaluation_of("lora", 12.0);
  EXPECT_TRUE(text_lines(evaluation, 80).empty()) << "it has no named texts";
  evaluation["in_domain"] = true;
  evaluation["texts"]["devils-dictionary"] = evaluation_of("lora", 15.1);
  evaluation["texts"]["devils-dictionary"]["in_domain"] = false;
  evaluation["texts"]["devils-dictionary"].erase("gap_closed");
  EXPECT_EQ(text_of(text_lines(evaluation, 80)), R"(
text               domain         teacher  control   lora  gap closed
validation         in domain         12.5    13.75  14.25       62.5%
devils-dictionary  not in domain     12.5    13.75  14.25           -
)");
  EXPECT_THAT(control_verdict(evaluation),
              ::testing::HasSubstr("beyond 128 tokens 15.1 against 13.4 on devils-dictionary (not "
                                   "in domain); more steps"));
  EXPECT_EQ(text_lines(run_with("lora", evaluation), 80), text_lines(evaluation, 80));
}

TEST(Control, LayersThatAreKeptUntrainedAreToldInStatusWithBothErrors) {
  RunStatus status;
  TaskStatus task;
  task.stage = Stage::kTransfer;
  task.result = {{"layers",
                  {{{"layer", 6}, {"mse", 0.003}, {"control_mse", 0.004}},
                   {{"layer", 7},
                    {"mse", 0.0044},
                    {"trained_mse", 0.0051},
                    {"control_mse", 0.0044},
                    {"kept_untrained", true}},
                   {{"layer", 8},
                    {"mse", 0.0051},
                    {"trained_mse", 0.0051},
                    {"control_mse", 0.0044},
                    {"kept_untrained", false}}}}};
  status.tasks.push_back(task);
  EXPECT_EQ(text_of(untrained_lines(status, 200)), R"(
layer 7: kept untrained: MSE 0.0051 is above its control's 0.0044
warning: layer 8: MSE 0.0051 is above its control's 0.0044, and this feature map cannot be switched off; the trained one is kept
)");
  for (const std::string& line : untrained_lines(status, 40)) EXPECT_LE(line.size(), 40U) << line;
}

TEST(Control, OfManyLayersThatAreKeptUntrainedTheOthersAreCounted) {
  RunStatus status;
  TaskStatus task;
  task.stage = Stage::kTransfer;
  for (int layer = 0; layer < 32; ++layer) {
    task.result["layers"].push_back(
        {{"layer", layer}, {"trained_mse", 2.0}, {"control_mse", 1.0}, {"kept_untrained", true}});
  }
  status.tasks.push_back(task);
  const std::vector<std::string> lines = untrained_lines(status, 80);
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(lines.back(), "... and 24 more layers");
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
