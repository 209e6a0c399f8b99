// What a coordinator records of attempts, from its workers' side (coordinator_fixture.hpp).
#include "coordinator/serve/history_recorder.hpp"

#include <fstream>

#include "coordinator_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

TEST_F(CoordinatorRun, WhatAttemptsMeasureGoesIntoTheHistoryWhateverElseTheyWrite) {
  std::jthread worker([this] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    while (const auto task = client->next_task(-1)) {
      if (task->kind != wire::TaskKind::kTransfer) {
        execute(*client, *task);
        continue;
      }
      const std::filesystem::path attempt =
          layout_.resolve(storage::RunLayout::attempt_directory(task->fencing_token));
      std::filesystem::create_directories(attempt);
      const std::string layer = std::to_string(task->first_layer);
      if (task->block == 1) {
        std::filesystem::create_directory(attempt / "metrics.jsonl");  // is no file
      } else {
        std::ofstream(attempt / "metrics.jsonl")
            << "not JSON\n{\"layer\": \"x\", \"step\": 0}\n{\"step\": 3}\n{\"attention\": 5}\n"
            << "{\"layer\": " << layer << ", \"step\": 0, \"mse\": 1.5, \"relative_mse\": null}\n"
            << "{\"layer\": " << layer << ", \"step\": 20, \"mse\": 0.5}\n"
            << "{\"layer\": " << layer << ", \"step\": 40, \"mse\": 0.25";  // it was killed here
      }
      client->done({write_artifact(task->block, task->fencing_token)},
                   {{"layers", nlohmann::json::array()}, {"tokens", "many"}, {"steps", 40}});
    }
  });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  storage::HistoryReader reader(layout_);
  reader.read_all();
  const storage::History& history = reader.history();
  const storage::HistorySeries& series = history.series.at("layer/0");
  ASSERT_EQ(series.rows.size(), 2U);
  EXPECT_EQ(series.rows[0].values[0], 1.5F);
  EXPECT_TRUE(std::isnan(series.rows[0].values[1])) << "not measured";
  EXPECT_EQ(series.rows[1].step, 20);
  EXPECT_EQ(static_cast<int>(history.attempts.size()), num_records("granted")) << "also those of a moment";
  for (const auto& [token, attempt] : history.attempts) {
    EXPECT_EQ(attempt.outcome, "done") << attempt.task;
    EXPECT_GE(attempt.ended, attempt.started) << attempt.task;
  }
  EXPECT_TRUE(std::ranges::any_of(history.attempts, [](const auto& entry) {
    return entry.second.task == "transfer/b0000" && entry.second.steps == 40;
  }));
  EXPECT_EQ(history.events.front().type, "term_started");
}

}  // namespace
}  // namespace hedgerow::coordinator
