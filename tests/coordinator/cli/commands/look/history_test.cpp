// The commands that read a run's history: metrics, report, watch --web.
#include <fstream>

#include "coordinator/web/server.hpp"
#include "storage/files/file.hpp"
#include "storage/history/history_file.hpp"
#include "tests/coordinator/cli/fake_console.hpp"
#include "tests/coordinator/cli/small_run.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;

class HistoryCommands : public ::testing::Test {
 protected:
  Answer run_here(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--run", run_.directory()});
    return run_line(std::move(arguments), {});
  }
  void record() {
    storage::HistoryWriter writer(run_.layout, 1);
    for (int layer = 0; layer < 3; ++layer)
      for (int step : {0, 20})
        writer.offer("layer/" + std::to_string(layer),
                     {"mse", "relative_mse"},
                     {step, 1.0, {0.25F / static_cast<float>(step + 1), 0.5F}});
    writer.append(storage::HistoryEvent{1.0, "transfer/b0001", "failed", "failed: a reason"});
    writer.flush();
  }
  SmallRun run_;
};

TEST_F(HistoryCommands, ARunWithoutAHistoryIsOneClearSentence) {
  const Answer answer = run_here({"metrics"});
  EXPECT_EQ(answer.code, 2);
  EXPECT_NE(answer.err.find("has no history: nothing was measured in it yet"), std::string::npos)
      << answer.err;
  EXPECT_EQ(std::count(answer.err.begin(), answer.err.end(), '\n'), 1);
}

TEST_F(HistoryCommands, MetricsArePrintedAsATableAsJsonAndAsCsv) {
  record();
  const Answer text = run_here({"metrics"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("0.0119"), std::string::npos) << text.out;
  const Answer json = run_here({"metrics", "--json"});
  ASSERT_EQ(json.json.size(), 1U);
  EXPECT_EQ(json.json[0]["series"]["layer/2"]["rows"][1][0], 20);
  const Answer csv = run_here({"metrics", "--csv"});
  EXPECT_NE(csv.out.find("layer/1,0,1,mse,0.25\n"), std::string::npos) << csv.out;
  EXPECT_EQ(run_here({"metrics", "--csv", "--json"}).code, 2);
}

TEST_F(HistoryCommands, ABlockIsShownAloneWithItsEvents) {
  record();
  const Answer answer = run_here({"metrics", "--block", "1", "--json"});
  ASSERT_EQ(answer.json.size(), 1U) << answer.err;
  EXPECT_FALSE(answer.json[0]["series"].contains("layer/0"));
  EXPECT_EQ(answer.json[0]["events"][0]["text"], "failed: a reason");
  const Answer none = run_here({"metrics", "--block", "9"});
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("block 9 does not exist: this run has blocks 0 to 1"), std::string::npos);
}

TEST_F(HistoryCommands, EventFilesForTensorboardAreWritten) {
  record();
  const fs::path out = run_.scratch / "events";
  const Answer answer = run_here({"metrics", "--tensorboard", out.string()});
  EXPECT_EQ(answer.code, 0) << answer.err;
  EXPECT_TRUE(
      fs::directory_iterator(out)->path().filename().string().starts_with("events.out.tfevents."));
}

TEST_F(HistoryCommands, AReportIsWrittenIntoTheRunOrWhereItIsAsked) {
  if (!has_web_page()) GTEST_SKIP() << "built with HEDGEROW_WEB=OFF";
  record();
  EXPECT_EQ(run_here({"report"}).code, 0);
  EXPECT_TRUE(fs::exists(run_.layout.root() / "report.html"));
  const fs::path out = run_.scratch / "elsewhere.html";
  EXPECT_EQ(run_here({"report", "--out", out.string()}).code, 0);
  EXPECT_NE(storage::read_text(out).find("layer/2"), std::string::npos);
  const Answer directory = run_here({"report", "--out", (run_.scratch / ".").string()});
  EXPECT_EQ(directory.code, 2);
}

TEST_F(HistoryCommands, AnAddressThatIsNoneIsRefusedBeforeAnythingBegins) {
  const Answer answer = run_here({"run", "--web", "host:99999"});
  EXPECT_EQ(answer.code, 2);
  const std::string reason =
      has_web_page() ? "expected HOST:PORT" : "this hedgerow was built without";
  EXPECT_NE(answer.err.find("--web host:99999: " + reason), std::string::npos) << answer.err;
}

TEST_F(HistoryCommands, CleanLeavesTheHistory) {
  record();
  EXPECT_EQ(run_here({"clean", "--yes"}).code, 0);
  EXPECT_EQ(run_here({"metrics"}).code, 0);
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
