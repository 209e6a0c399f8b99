// What a coordinator records of attempts, from its workers' side (coordinator_fixture.hpp).
#include "coordinator/serve/history_recorder.hpp"

#include <fstream>

#include "coordinator/web/prometheus.hpp"
#include "coordinator/web/snapshot.hpp"
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

// A measure of the layers and one of their heads, which the table of columns does not have.
TEST_F(CoordinatorRun, ANewColumnIsRecordedAndIsShownOnceTheTableHasARowForIt) {
  std::jthread worker([this] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    while (const auto task = client->next_task(-1)) {
      if (task->kind != wire::TaskKind::kTransfer) {
        execute(*client, *task);
        continue;
      }
      const std::string layer = "{\"layer\": " + std::to_string(task->first_layer);
      const std::filesystem::path attempt =
          layout_.resolve(storage::RunLayout::attempt_directory(task->fencing_token));
      std::filesystem::create_directories(attempt);
      std::ofstream(attempt / "metrics.jsonl")
          << layer << ", \"step\": 0, \"mse\": 1.5, \"note\": \"x\"}\n"
          << layer << ", \"step\": 20, \"rank\": [3, 4], \"mse\": 0.5, \"drift\": 0.25}\n"
          << layer << ", \"head\": 5, \"step\": 20, \"entropy\": 2.5}\n"
          << layer << ", \"head\": \"x\", \"step\": 20, \"entropy\": 2.5}\n";
      client->done({write_artifact(task->block, task->fencing_token)},
                   {{"layers", nlohmann::json::array()}});
    }
  });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  storage::HistoryReader reader(layout_);
  reader.read_all();
  const storage::HistorySeries& layer = reader.history().series.at("layer/0");
  EXPECT_EQ(layer.columns, (std::vector<std::string>{"mse", "drift", "rank/0", "rank/1"}));
  ASSERT_EQ(layer.rows.size(), 2U) << "those of before a column came stay";
  EXPECT_EQ(layer.rows[0].values[0], 1.5F);
  EXPECT_TRUE(std::isnan(layer.rows[0].values[1]));
  EXPECT_EQ(layer.rows[1].values, (std::vector<float>{0.5F, 0.25F, 3.0F, 4.0F}));
  const storage::HistorySeries& head = reader.history().series.at("layer/0/head/5");
  EXPECT_EQ(head.columns, std::vector<std::string>{"entropy"});

  RunStatus status;
  status.updated_at = "2026-09-21T14:13:20.000Z";
  const std::string before = prometheus_text(status, reader.history());
  EXPECT_NE(before.find("hedgerow_layer_mse{layer=\"0\"} 0.5\n"), std::string::npos) << before;
  EXPECT_EQ(before.find("entropy"), std::string::npos) << before;
  const auto shipped = storage::history_columns();
  std::vector<storage::HistoryColumn> columns(shipped.begin(), shipped.end());
  columns.push_back({.series = "layer/head",
                     .name = "entropy",
                     .label = "entropy of a head",
                     .help = "Of its weights.",
                     .prometheus = "hedgerow_head_entropy_nats"});
  columns.push_back({.series = "layer",
                     .name = "rank/",
                     .label = "rank by head",
                     .help = "Of its weights.",
                     .prometheus = "hedgerow_head_rank",
                     .index = "head"});
  const std::string after = prometheus_text(status, reader.history(), columns);
  for (const char* line : {"hedgerow_head_entropy_nats{head=\"5\",layer=\"0\"} 2.5\n",
                           "hedgerow_head_rank{head=\"0\",layer=\"0\"} 3\n",
                           "hedgerow_head_rank{head=\"1\",layer=\"0\"} 4\n"})
    EXPECT_NE(after.find(line), std::string::npos) << line << after;
  const auto page = nlohmann::json::parse(snapshot_json({.status = status,
                                                         .history = reader.history(),
                                                         .recipe = "",
                                                         .provenance = {},
                                                         .columns = columns}));
  EXPECT_EQ(page["columns"].size(), shipped.size() + 2);
  EXPECT_EQ(page["columns"].back()["label"], "rank by head");
  EXPECT_EQ(page["history"]["series"]["layer/0/head/5"]["rows"][0][2], 2.5);
}

}  // namespace
}  // namespace hedgerow::coordinator
