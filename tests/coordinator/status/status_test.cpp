#include "coordinator/status/status.hpp"

#include <algorithm>
#include <fstream>

#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/status/status_build.hpp"
#include "storage/files/file.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/support/writer_of.hpp"

namespace hedgerow::coordinator {
namespace {

class StatusTest : public RunFixture {
 protected:
  StatusTest() {
    storage::write_atomically(layout_.recipe(), "# only its presence matters here\n");
  }

  void write_journal(const std::vector<Event>& events) {
    storage::Journal journal = open_journal();
    for (const Event& event : events) journal.append(event_to_json(event));
    journal.commit();
  }
};

TEST_F(StatusTest, ADirectoryWithoutARecipeIsNoRun) {
  std::filesystem::remove(layout_.recipe());
  EXPECT_THROW(static_cast<void>(read_status(layout_)), storage::Error);
}

TEST_F(StatusTest, ARunThatNeverStartedIsNew) { EXPECT_EQ(read_status(layout_).state, "new"); }

TEST_F(StatusTest, ADoneRunIsDoneAlsoForTheRunThatFindsItSo) {
  geometry_ = {};
  geometry_.num_layers = geometry_.layers_per_block = 4;
  geometry_.num_shards = 1;
  const TokenizeStage tokenize_stage(layout_);
  EXPECT_EQ(read_status(layout_).state, "preparing");
  write_journal({RunStarted{geometry_, "test"},
                 Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"},
                 TaskDone{1, {}, nullptr},
                 Granted{TaskId::assemble(), 2, "coordinator", 1, ""},
                 TaskDone{2, {}, nullptr}});
  EXPECT_EQ(read_status(layout_).state, "done");
}

TEST_F(StatusTest, WhatWasPlannedIsShownAndADamagedPlanIsAWarningAlone) {
  write_journal({RunStarted{geometry_, "test"},
                 Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"},
                 TaskReleased{1, "stopped"}});
  const auto transfer = [](const RunStatus& status) {
    return std::find_if(status.stages.begin(),
                        status.stages.end(),
                        [](const auto& stage) { return stage.stage == Stage::kTransfer; })
        ->planned;
  };
  const RunStatus unplanned = read_status(layout_);
  EXPECT_FALSE(transfer(unplanned));
  EXPECT_FALSE(unplanned.so_far);
  EXPECT_TRUE(unplanned.warnings.empty());
  write_plan(layout_,
             {.stages = {{.stage = Stage::kTransfer, .seconds = 62.0, .memory_bytes = 672}},
              .price_per_hour = 4.0});
  const RunStatus planned = read_status(layout_);
  ASSERT_TRUE(transfer(planned));
  EXPECT_DOUBLE_EQ(transfer(planned)->seconds, 62.0);
  ASSERT_TRUE(planned.so_far);
  EXPECT_TRUE(planned.so_far->cost);
  EXPECT_FALSE(planned.to_come) << "nobody knows when a stopped run ends";
  storage::write_atomically(layout_.plan(), "{");
  const RunStatus damaged = read_status(layout_);
  EXPECT_FALSE(transfer(damaged));
  ASSERT_EQ(damaged.warnings.size(), 1U);
  EXPECT_NE(damaged.warnings[0].find("plan.json cannot be read"), std::string::npos);
}

TEST_F(StatusTest, AStoppedRunTellsWhatEachTaskWaitsFor) {
  write_journal(
      {RunStarted{geometry_, "test"},
       Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"},
       TaskFailed{1, storage::ErrorKind::kUnavailable, "worker w1 was killed by signal 9"}});
  const RunStatus status = read_status(layout_);
  EXPECT_EQ(status.state, "stopped");
  EXPECT_EQ(status.num_blocks, 3);
  const TaskStatus* failed = status.task("transfer/b0000");
  ASSERT_NE(failed, nullptr);
  EXPECT_EQ(failed->state, "ready");
  EXPECT_EQ(failed->failures, 1);
  EXPECT_NE(failed->reason.find("signal 9"), std::string::npos);
  EXPECT_EQ(status.task("transfer/b0001")->state, "waiting");
  EXPECT_EQ(status.task("transfer/b0001")->reason, "boundary 1 is not complete");
  EXPECT_EQ(status.task("no such task"), nullptr);
}

TEST_F(StatusTest, StatusSurvivesJson) {
  write_journal({RunStarted{geometry_, "test"}, Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"}});
  RunStatus status = read_status(layout_);
  status.workers.push_back({"w1", "node7", "cpu", "training", "transfer/b0000", 1, 42, 0.5});
  wire::Progress progress;
  progress.loss = 0.5;
  status.tasks.front().progress = progress;
  const nlohmann::json json = status;
  EXPECT_EQ(nlohmann::json(json.get<RunStatus>()), json);
  nlohmann::json earlier = json;  // of a build whose status had the errors of layers
  earlier["tasks"][0]["layer_mse"] = {0.5, nullptr};
  earlier["tasks"][0]["progress"]["layer_mse"] = {0.5, nullptr};
  earlier["tasks"][0]["progress"]["linear_share"] = {0.5, nullptr};
  EXPECT_EQ(nlohmann::json(earlier.get<RunStatus>()), json);
}

TEST_F(StatusTest, ExplainTellsABlocksStoryAndThatOfTheBoundaryItReads) {
  write_journal({RunStarted{geometry_, "test"},
                 Granted{TaskId::capture(0, 0), 1, "w1", 1, "cpu"},
                 ShardCommitted{1, 0, {"hidden/b0001/s00000.t1.h5", 1, {}}},
                 TaskDone{1, {}, nullptr},
                 Granted{TaskId::transfer(1), 2, "w1", 1, "cpu"},
                 TaskFailed{2, storage::ErrorKind::kCorrupt, "sequence 3"},
                 FileLost{"hidden/b0001/s00000.t1.h5", "sequence 3"},
                 Granted{TaskId::transfer(2), 3, "w2", 1, "cpu"}});
  const auto events = explain(layout_, 1);
  std::vector<std::string> lines;
  for (const auto& event : events) lines.push_back(event.subject + ": " + event.text);
  EXPECT_EQ(
      lines,
      (std::vector<std::string>{"capture/b0000/p00: granted to w1 under fencing token 1",
                                "capture/b0000/p00: committed hidden/b0001/s00000.t1.h5",
                                "capture/b0000/p00: done",
                                "transfer/b0001: granted to w1 under fencing token 2",
                                "transfer/b0001: failed (corrupt): sequence 3",
                                "capture/b0000/p00: lost hidden/b0001/s00000.t1.h5: sequence 3"}));
  EXPECT_GT(explain(layout_).size(), events.size());
}

// A snapshot keeps the state and not how it came about.
TEST_F(StatusTest, ExplainGoesBackBeyondASnapshot) {
  storage::Journal journal = open_journal();
  State state;
  const std::vector<Event> events = {RunStarted{geometry_, "test"},
                                     Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"},
                                     TaskFailed{1, storage::ErrorKind::kInternal, "boom"}};
  for (const Event& event : events) {
    static_cast<void>(coordinator::apply(state, event));
    journal.append(event_to_json(event));
  }
  journal.write_snapshot(tests::writer_of(state_to_json(state)));
  journal.append(event_to_json(Granted{TaskId::transfer(0), 2, "w2", 1, "cpu"}));
  journal.commit();
  std::vector<std::string> lines;
  for (const auto& event : explain(layout_, 0)) lines.push_back(event.text);
  EXPECT_EQ(lines,
            (std::vector<std::string>{"granted to w1 under fencing token 1",
                                      "failed (internal): boom",
                                      "granted to w2 under fencing token 2"}));
  EXPECT_EQ(read_status(layout_).task("transfer/b0000")->attempts, 2);
}

// What a damaged record committed is unknown; the rest of the journal still stands, and the run is
// not refused.
TEST_F(StatusTest, ADamagedRecordIsSkippedAndNamed) {
  write_journal({RunStarted{geometry_, "test"},
                 Granted{TaskId::transfer(0), 1, "w1", 1, "cpu"},
                 Granted{TaskId::transfer(1), 2, "w1", 1, "cpu"},
                 Noted{"the last one"}});
  const auto segment = layout_.journal_segment(1);
  std::string text = storage::read_text(segment);
  const std::size_t at = text.find("transfer/b0000");
  ASSERT_NE(at, std::string::npos);
  text[at] = 'X';
  std::ofstream(segment, std::ios::binary) << text;
  const RunStatus status = read_status(layout_);
  EXPECT_EQ(status.task("transfer/b0000")->attempts, 0);
  EXPECT_FALSE(status.warnings.empty());
}

// Those that follow from it are as many as the run is long.
TEST_F(StatusTest, OfRecordsThatALostOneMakesSenselessOnlyTheFirstIsTold) {
  std::vector<Event> events = {RunStarted{geometry_, "test"}};
  for (std::uint64_t token = 1; token <= 9; ++token)
    events.push_back(TaskReleased{token, "no grant"});
  write_journal(events);
  const RunStatus status = read_status(layout_);
  ASSERT_EQ(status.warnings.size(), 1U);
  EXPECT_NE(status.warnings.front().find("; so are 8 of those behind it"), std::string::npos)
      << status.warnings.front();
}

TEST_F(StatusTest, AJournalFullOfHolesOrNotesFillsNoScreen) {
  std::vector<Event> events = {RunStarted{geometry_, "test"}};
  for (int i = 0; i < 500; ++i) events.push_back(Noted{"note " + std::to_string(i)});
  write_journal(events);
  const auto segment = layout_.journal_segment(1);
  std::string text = storage::read_text(segment);
  for (int i = 0; i < 200; ++i) text.replace(text.find("\"note "), 6, "\"HOLE ");
  std::ofstream(segment, std::ios::binary) << text;
  const std::vector<std::string> warnings = read_status(layout_).warnings;
  ASSERT_EQ(warnings.size(), kMaxWarnings);
  EXPECT_NE(warnings.front().find("more warnings before these"), std::string::npos)
      << warnings.front();
  EXPECT_EQ(warnings.back(), "note 499");
}

// An empty state in its place would do the whole run again.
TEST_F(StatusTest, ASnapshotOfAnotherFormatIsRefusedAndNamed) {
  storage::Journal journal = open_journal();
  journal.append(event_to_json(RunStarted{geometry_, "test"}));
  journal.write_snapshot(tests::writer_of({{"format", "state/9"}}));
  try {
    static_cast<void>(fold(storage::replay_journal(layout_)));
    FAIL() << "folded without the snapshot";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("state/9"), std::string::npos) << error.what();
  }
}

// A run of one shard.
Geometry four_layers(int layers_per_block) {
  Geometry geometry;
  geometry.num_layers = 4;
  geometry.layers_per_block = layers_per_block;
  geometry.num_shards = 1;
  return geometry;
}

ProgressOf of_token(std::uint64_t token, const LiveProgress& live) {
  return [=](std::uint64_t asked) {
    return asked == token ? std::optional<LiveProgress>(live) : std::nullopt;
  };
}

LiveProgress progress_of(const std::string& phase, std::int64_t step, std::int64_t num_steps) {
  LiveProgress live;
  live.progress.phase = phase;
  live.progress.step = step;
  live.progress.num_steps = num_steps;
  return live;
}

TEST(FillStatus, LayersThatAreLoadedAreNotStepsThatAreDone) {
  State state;
  const Geometry geometry = four_layers(4);
  static_cast<void>(coordinator::apply(state, RunStarted{geometry, "test"}));
  static_cast<void>(coordinator::apply(state, Granted{TaskId::transfer(0), 1, "w1", 1, ""}));
  const auto transferred = [&](const std::string& phase) {
    const LiveProgress live = progress_of(phase, 3, 4);
    RunStatus status;
    fill_status(status, state, {}, of_token(1, live), 0.0);
    for (const StageStatus& stage : status.stages)
      if (stage.stage == Stage::kTransfer) return stage.fraction;
    return -1.0;
  };
  EXPECT_EQ(transferred("loading"), 0.0);
  EXPECT_EQ(transferred("training"), 0.75);
}

TEST(FillStatus, AnAttemptThatEndedLeavesTheStepsOfItsCheckpointAndLoadingDoesNotTakeThem) {
  State state;
  const Geometry geometry = four_layers(4);
  for (const Event& event : std::vector<Event>{RunStarted{geometry, "test"},
                                               Granted{TaskId::transfer(0), 1, "w1", 1, ""},
                                               CheckpointCommitted{1, 30, {"c", 1, {}}},
                                               TaskReleased{1, "interrupted"}})
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
  const JobSize size{.transfer_steps = 60,
                     .work = {{Stage::kCapture, 100.0}, {Stage::kTransfer, 300.0}}};
  RunStatus status;
  fill_status(status, state, {}, {}, 0.0, size);
  EXPECT_EQ(status.task("transfer/b0000")->steps().done, 30);
  EXPECT_EQ(status.task("transfer/b0000")->steps().all, 60);
  ASSERT_TRUE(status.fraction);
  EXPECT_FALSE(status.eta_seconds) << "nothing runs, so it comes to no end";
  static_cast<void>(coordinator::apply(state, Granted{TaskId::transfer(0), 2, "w1", 1, ""}));
  const LiveProgress live = progress_of("loading", 1, 4);
  StageTimes times;
  times.observe(0.0, state);
  RunStatus loading;
  fill_status(loading, state, times, of_token(2, live), 30.0, size);
  for (const StageStatus& stage : loading.stages) {
    if (stage.stage == Stage::kTransfer) {
      EXPECT_DOUBLE_EQ(stage.fraction, 0.5);
    }
  }
  const double done = *loading.fraction;
  ASSERT_TRUE(loading.eta_seconds);
  EXPECT_DOUBLE_EQ(*loading.eta_seconds, 30.0 * (1.0 - done) / done);
}

TEST(FillStatus, TheWholeIsUnknownWithoutAPlanAndElseWeighsStagesByTheirWork) {
  State state;
  const Geometry geometry = four_layers(2);
  for (const Event& event : std::vector<Event>{RunStarted{geometry, "test"},
                                               Granted{TaskId::capture(0, 0), 1, "w1", 1, ""},
                                               ShardCommitted{1, 0, {"s", 1, {}}},
                                               TaskDone{1, {}, nlohmann::json::object()}})
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
  RunStatus status;
  fill_status(status, state, {}, {}, 0.0);
  EXPECT_FALSE(status.fraction);
  RunStatus planned;
  fill_status(
      planned, state, {}, {}, 0.0, {.work = {{Stage::kCapture, 100.0}, {Stage::kTransfer, 300.0}}});
  EXPECT_DOUBLE_EQ(planned.fraction.value_or(-1.0), 0.25);
}

TEST(FillStatus, AFailureAndALostLeaseAreOtherTriesAndAReleaseIsNot) {
  State state;
  const Geometry geometry = four_layers(4);
  const TaskId id = TaskId::transfer(0);
  const auto tries = [&](const std::vector<Event>& events) {
    for (const Event& event : events) EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
    RunStatus status;
    fill_status(status, state_from_json(state_to_json(state)), {}, {}, 0.0);
    return status.task("transfer/b0000")->tries();
  };
  EXPECT_EQ(tries({RunStarted{geometry, "test"}}), 0);
  EXPECT_EQ(tries({Granted{id, 1, "w1", 1, ""}, TaskReleased{1, ""}}), 1);
  EXPECT_EQ(tries({Granted{id, 2, "w1", 1, ""}}), 1);
  EXPECT_EQ(tries({TaskFailed{2, storage::ErrorKind::kInternal, ""}}), 2);
  EXPECT_EQ(tries({Granted{id, 3, "w1", 1, ""}, LeaseRevoked{3, ""}}), 3);
}

TEST(FillStatus, AnEtaIsThereFromTheFirstFinishedShardOrStepOnAndStays) {
  State state;
  const Geometry geometry = four_layers(2);
  StageTimes times;
  const auto at = [&](double seconds, const Event& event) {
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
    times.observe(seconds, state);
  };
  const auto shown = [&](double now, const ProgressOf& progress) {
    RunStatus status;
    fill_status(status,
                state,
                times,
                progress,
                now,
                {.work = {{Stage::kCapture, 100.0}, {Stage::kTransfer, 900.0}}});
    return status;
  };
  at(0, RunStarted{geometry, "test"});
  at(0, Granted{TaskId::capture(0, 0), 1, "w1", 1, ""});
  EXPECT_FALSE(shown(4, of_token(1, progress_of("loading", 1, 2))).eta_seconds);
  at(5, ShardCommitted{1, 0, {"s", 1, {}}});
  ASSERT_TRUE(shown(5, {}).eta_seconds);
  EXPECT_NEAR(*shown(5, {}).eta_seconds, 45.0, 1e-9) << "a tenth of the work took 5 s";
  EXPECT_DOUBLE_EQ(shown(5, {}).elapsed_seconds, 5.0);
  at(5, TaskDone{1, {}, nlohmann::json::object()});
  at(5, Granted{TaskId::transfer(0), 2, "w1", 1, ""});
  // Nothing of the transfer is measured; its work is, by the speed of the capture.
  EXPECT_NEAR(*shown(8, of_token(2, progress_of("loading", 1, 2))).eta_seconds, 45.0, 1e-9);
  EXPECT_FALSE(shown(8, of_token(2, progress_of("training", 0, 60))).stages[1].eta_seconds);
  // One step of 60, of one block of two, after 10 s of loading and 1 s of work.
  LiveProgress live = progress_of("training", 1, 60);
  EXPECT_NEAR(*shown(16, of_token(2, live)).stages[1].eta_seconds, 11.0 * 119, 1e-6);
  live.speed = {1.0, 512.0};
  const RunStatus status = shown(16, of_token(2, live));
  EXPECT_NEAR(*status.stages[1].eta_seconds, 119.0, 1e-9) << "loading is no step";
  EXPECT_NEAR(*status.eta_seconds, 119.0, 1e-9);
  EXPECT_DOUBLE_EQ(status.elapsed_seconds, 16.0);
}

TEST(StageTimes, OverlappingTasksCountOnceAndTermsAddUp) {
  State state;
  StageTimes times;
  const auto run = [&](double at, const Event& event) {
    static_cast<void>(coordinator::apply(state, event));
    times.observe(at, state);
  };
  const Geometry geometry = four_layers(2);
  run(0, RunStarted{geometry, "test"});
  run(10, Granted{TaskId::transfer(0), 1, "w1", 1, ""});
  run(15, Granted{TaskId::capture(0, 0), 2, "w2", 1, ""});
  run(20, TaskReleased{1, ""});
  run(30, Granted{TaskId::transfer(0), 3, "w1", 1, ""});
  EXPECT_DOUBLE_EQ(times.seconds(Stage::kTransfer, 35), 15);
  EXPECT_DOUBLE_EQ(times.seconds(Stage::kCapture, 35), 20);
  EXPECT_DOUBLE_EQ(times.busy_seconds(35), 25) << "both at once are one time";
  times.close(40);
  EXPECT_DOUBLE_EQ(times.seconds(Stage::kTransfer, 1000), 20);
}

TEST(FillStatus, WhatAStageTookStandsBesideWhatWasPlanned) {
  State state;
  const Geometry geometry = four_layers(2);
  StageTimes times;
  const auto at = [&](double seconds, const Event& event) {
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
    times.observe(seconds, state);
  };
  const auto result = [](std::uint64_t host, std::uint64_t device) {
    return nlohmann::json{{"peak_memory", wire::PeakMemory{host, device, device}}};
  };
  at(0, RunStarted{geometry, "test"});
  at(0, Granted{TaskId::capture(0, 0), 1, "w1", 1, ""});
  at(900, ShardCommitted{1, 0, {"s", 1'000, {}}});
  at(1'800, TaskDone{1, {}, result(70, 50)});
  at(1'800, Granted{TaskId::transfer(0), 2, "w1", 1, ""});
  at(1'800, Granted{TaskId::transfer(1), 3, "w2", 1, ""});
  at(2'700, CheckpointCommitted{2, 30, {"c", 500, {}}});
  at(3'600, TaskDone{2, {{"a", 200, {}}}, result(80, 60)});
  JobSize size{.work = {{Stage::kCapture, 1.0}, {Stage::kTransfer, 1.0}}};
  size.plan = RecordedPlan{
      .stages =
          {{.stage = Stage::kCapture, .seconds = 1'000.0, .gpu_hours = 0.25, .memory_bytes = 55},
           {.stage = Stage::kTransfer, .seconds = 7'200.0, .gpu_hours = 2.0},
           {.stage = Stage::kFinetune, .gpu_hours = 8.0}},
      .price_per_hour = 3.0};
  RunStatus status;
  fill_status(status, state, times, {}, 5'400.0, size);
  const StageStatus& capture = status.stages[0];
  EXPECT_EQ(capture.memory_bytes, 50U) << "of the GPU, where it computes";
  EXPECT_EQ(capture.disk_bytes, 1'000U);
  EXPECT_DOUBLE_EQ(capture.gpu_hours, 0.5);
  ASSERT_TRUE(capture.planned);
  EXPECT_EQ(capture.planned->memory_bytes, 55U);
  const StageStatus& transfer = status.stages[1];
  EXPECT_EQ(transfer.disk_bytes, 1'500U) << "the checkpoint goes when its block is done";
  EXPECT_DOUBLE_EQ(transfer.seconds, 3'600.0);
  EXPECT_DOUBLE_EQ(transfer.gpu_hours, 1.5) << "two workers for half an hour, one for another";
  ASSERT_TRUE(status.so_far);
  EXPECT_DOUBLE_EQ(status.so_far->gpu_hours, 2.0);
  EXPECT_DOUBLE_EQ(status.so_far->cost.value_or(0.0), 4.5);
  ASSERT_TRUE(status.eta_seconds && status.to_come);
  EXPECT_DOUBLE_EQ(status.to_come->cost.value_or(0.0), 3.0 * *status.eta_seconds / 3'600.0);
  EXPECT_DOUBLE_EQ(status.to_come->gpu_hours, 1.5) << "half of the transfer is done";
  const auto again = nlohmann::json(status).get<RunStatus>();
  EXPECT_EQ(nlohmann::json(again), nlohmann::json(status));
}

// A status.json of an older build.
TEST(FillStatus, AStatusWithoutFiguresIsReadAsOneThatHasNone) {
  RunStatus status;
  status.stages.emplace_back().stage = Stage::kCapture;
  nlohmann::json json = status;
  for (const char* key : {"gpu_hours", "memory_bytes", "disk_bytes"}) json["stages"][0].erase(key);
  const auto read = json.get<RunStatus>();
  EXPECT_FALSE(read.so_far || read.to_come || read.stages[0].planned);
  EXPECT_EQ(read.stages[0].memory_bytes, 0U);
}

TEST(FillStatus, OnProcessorsThereAreNoGpuHours) {
  State state;
  StageTimes times;
  for (const Event& event : std::vector<Event>{RunStarted{four_layers(2), "test"},
                                               Granted{TaskId::transfer(0), 1, "w1", 1, ""}}) {
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
    times.observe(0.0, state);
  }
  const auto gpu_hours = [&](bool on_gpus) {
    JobSize size;
    size.plan = RecordedPlan{.on_gpus = on_gpus};
    RunStatus status;
    fill_status(status, state, times, {}, 3'600.0, size);
    EXPECT_FALSE(status.so_far->cost) << "no node has a price";
    return status.so_far->gpu_hours;
  };
  EXPECT_DOUBLE_EQ(gpu_hours(false), 0.0);
  EXPECT_DOUBLE_EQ(gpu_hours(true), 1.0) << "as planned, until somebody has measured";
}

// As many captures as a large model's run has; what one second shows of it must stay small.
TEST(FillStatus, OfManyCapturesThoseAtWorkAndInTroubleAreListedAndAllAreCounted) {
  Geometry geometry = four_layers(1);
  geometry.num_shards = 2'000;
  State state;
  for (const Event& event : std::vector<Event>{RunStarted{geometry, "test"},
                                               Granted{TaskId::capture(0, 0), 1, "w1", 1, ""},
                                               ShardCommitted{1, 0, {"s", 1, {}}},
                                               TaskDone{1, {}, nlohmann::json::object()},
                                               Granted{TaskId::capture(0, 7), 2, "w1", 1, ""},
                                               Granted{TaskId::capture(0, 8), 3, "w2", 1, ""},
                                               TaskFailed{3, storage::ErrorKind::kInternal, "no"},
                                               Granted{TaskId::capture(0, 9), 4, "w2", 1, ""},
                                               TaskFailed{4, storage::ErrorKind::kInternal, "no"},
                                               Quarantined{TaskId::capture(0, 9), "no"}})
    EXPECT_EQ(coordinator::apply(state, event), std::nullopt);
  RunStatus status;
  fill_status(status, state, {}, of_token(2, progress_of("capturing", 1, 2)), 0.0);
  ASSERT_NE(status.task("capture/b0000/p07"), nullptr);
  EXPECT_TRUE(status.task("capture/b0000/p07")->progress);
  EXPECT_NE(status.task("capture/b0000/p08"), nullptr) << "it failed and waits";
  EXPECT_NE(status.task("capture/b0000/p09"), nullptr) << "it is quarantined";
  EXPECT_EQ(status.task("capture/b0000/p00"), nullptr) << "it is done";
  EXPECT_NE(status.task("transfer/b0003"), nullptr);
  EXPECT_NE(status.task("assemble"), nullptr);
  EXPECT_EQ(status.tasks_left_out, 6'000 - 3);
  ASSERT_EQ(status.stages.front().stage, Stage::kCapture);
  EXPECT_EQ(status.stages.front().total, 6'000);
  EXPECT_EQ(status.stages.front().done, 1);
  EXPECT_EQ(status.stages.front().running, 1);
  EXPECT_DOUBLE_EQ(status.stages.front().fraction, 1.5 / 6'000);
  EXPECT_EQ(nlohmann::json(status).get<RunStatus>().tasks_left_out, status.tasks_left_out);
}

TEST(FillStatus, WhatIsListedDoesNotGrowWithTheWorkers) {
  Geometry geometry = four_layers(1);
  geometry.num_shards = 2'000;
  State state;
  EXPECT_EQ(coordinator::apply(state, RunStarted{geometry, "test"}), std::nullopt);
  for (int piece = 0; piece < geometry.num_shards; ++piece) {
    const auto token = static_cast<std::uint64_t>(piece) + 1;
    const Granted granted{TaskId::capture(0, piece), token, "w" + std::to_string(piece), 1, ""};
    EXPECT_EQ(coordinator::apply(state, granted), std::nullopt);
  }
  RunStatus status;
  fill_status(status, state, {}, {}, 0.0);
  EXPECT_EQ(status.stages.front().running, 2'000);
  EXPECT_LE(status.tasks.size(), kMaxListed + 10);
}

}  // namespace
}  // namespace hedgerow::coordinator
