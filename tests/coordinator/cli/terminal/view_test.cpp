#include "coordinator/cli/terminal/view.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "coordinator/cli/terminal/explanation.hpp"
#include "coordinator/cli/terminal/screen.hpp"

namespace hedgerow::coordinator::cli {
namespace {

// Six blocks of five layers: done, running with a validation behind it, quarantined, and three that
// wait.
RunStatus status_of_a_run() {
  RunStatus status;
  status.run = "runs/smollm2";
  status.state = "running";
  status.term = 3;
  status.host = "node7";
  status.pid = 4711;
  status.num_layers = 30;
  status.num_blocks = 6;
  status.elapsed_seconds = 126;
  const auto stage = [&](const char* name,
                         int total,
                         int done,
                         int running,
                         double seconds,
                         double fraction,
                         std::optional<double> eta) {
    StageStatus value;
    value.stage = wire::task_kind_from(name).value();
    value.total = total;
    value.done = done;
    value.running = running;
    value.seconds = seconds;
    value.fraction = fraction;
    value.eta_seconds = eta;
    status.stages.push_back(value);
  };
  stage("capture", 10, 10, 0, 31, 1.0, std::nullopt);
  stage("transfer", 6, 1, 1, 95, 0.25, 285);
  stage("assemble", 1, 0, 0, 0, 0, std::nullopt);
  status.stages[1].quarantined = 1;
  for (int block = 0; block < 6; ++block) {
    TaskStatus task;
    task.id = "transfer/b000" + std::to_string(block);
    task.stage = Stage::kTransfer;
    task.block = block;
    task.first_layer = 5 * block;
    task.num_layers = 5;
    task.state = "ready";
    status.tasks.push_back(task);
  }
  TaskStatus& done = status.tasks[0];
  done.state = "done";
  done.attempts = 1;
  done.result = {
      {"layers",
       {{{"mse", 0.011}}, {{"mse", 0.012}}, {{"mse", 0.013}}, {{"mse", 0.042}}, {{"mse", 0.01}}}}};
  TaskStatus& running = status.tasks[1];
  running.state = "running";
  running.worker = "node7-1";
  running.attempts = 2;
  running.wasted = 1;
  running.progress.emplace();
  running.progress->phase = "training";
  running.progress->step = 20;
  running.progress->num_steps = 60;
  TaskStatus& quarantined = status.tasks[2];
  quarantined.state = "quarantined";
  quarantined.attempts = quarantined.wasted = 3;
  quarantined.reason = "failed three times on two workers";
  TaskStatus evaluation;
  evaluation.id = "evaluate/teacher";
  evaluation.stage = Stage::kEvaluate;
  evaluation.state = "done";
  evaluation.result = {{"perplexity", 12.53}, {"tokens_per_second", 2210.4}};
  status.tasks.push_back(evaluation);
  WorkerStatus worker;
  worker.uuid = "node7-1";
  worker.host = "node7";
  worker.device = "Xeon";
  worker.phase = "training";
  worker.task = "transfer/b0001";
  worker.seconds_since_heartbeat = 2.2;
  worker.speed = {2.0834, 983.1};
  status.workers = {worker};
  status.warnings = {"journal/000002.jsonl: torn tail, 31 bytes cut"};
  return status;
}

// What the attempt that runs has measured of layers `first` and on.
storage::History measured(int first, const std::vector<float>& mse) {
  storage::History history;
  history.attempts[0].started = 100.0;
  for (std::size_t i = 0; i < mse.size(); ++i) {
    storage::HistorySeries& series =
        history.series["layer/" + std::to_string(first + static_cast<int>(i))];
    series.columns = {"learning_rate", "mse"};
    series.rows = {{0, 120.0, {0.01F, mse[i]}}};
  }
  return history;
}

// The history of status_of_a_run().
storage::History history_of_five_layers() {
  return measured(5, {0.02F, 0.03F, 0.02F, 0.02F, 0.02F});
}
// The history of status_of_thirty_blocks().
storage::History history_of_thirty_blocks() { return measured(22, {0.04054F, 0.04191F}); }

// As `status` shows it.
std::vector<std::string> whole_view_of(const RunStatus& status,
                                       const storage::History& history,
                                       int width,
                                       std::size_t max_rows = kUnlimitedRows) {
  return whole_view(status, width, max_rows, &history, /*draws_heat=*/false);
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text = "\n";
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// JSON has no infinity: a student that diverged has null for its perplexity.
TEST(View, WhatIsNotFiniteIsADash) {
  RunStatus status = status_of_a_run();
  status.tasks[0].result = {{"layers", {{{"mse", nullptr}}, {{"mse", 0.5}}}}};
  status.tasks.back().result = {{"perplexity", nullptr}, {"tokens_per_second", 2210.4}};
  const std::string evaluated = result_lines(status, 80).at(1);
  EXPECT_TRUE(evaluated.ends_with(" -")) << evaluated;
  EXPECT_NE(block_lines(status, 80).at(1).find(" - "), std::string::npos);
}

// A block whose layers all stay softmax has no transfer.
TEST(View, TheStatusLineCountsTheBlocksThatTrain) {
  RunStatus status = status_of_a_run();
  status.num_blocks = 8;
  EXPECT_TRUE(status_line(status).starts_with("blocks 1/6 done")) << status_line(status);
}

TEST(View, OfARunAtEightyColumns) {
  EXPECT_EQ(joined(whole_view_of(status_of_a_run(), history_of_five_layers(), 80)), R"(
run runs/smollm2: running, elapsed 2m06s, term 3 on node7 (pid 4711)

capture  [################]100% 10/10  elapsed 31s
transfer [####------------] 25% 1/6  eta 4m45s  elapsed 1m35s  1 quarantined
assemble [----------------]  0% 0/1

block  layers  state         step     MSE  worst  at  tries
    0  0-4     done                0.0176  0.042  L3      1
    1  5-9     running      20/60   0.022   0.03  L6      2  node7-1, training
    2  10-14   quarantined              -      -          3  failed three times~
    3  15-19   ready                    -      -          0
    4  20-24   ready                    -      -          0
    5  25-29   ready                    -      -          0

MSE of each layer at its last validation
L0 0.011  L1 0.012  L2 0.013  L3 0.042  L4 0.01   L5 0.02   L6 0.03   L7 0.02
L8 0.02   L9 0.02

worker   host   device  doing                 speed  heard
node7-1  node7  Xeon    transfer/b0001  2.08 s/step   2.2s

evaluated  perplexity
teacher         12.53

warning: journal/000002.jsonl: torn tail, 31 bytes cut
)");
}

TEST(View, OfARunAtFortyColumns) {
  EXPECT_EQ(joined(whole_view_of(status_of_a_run(), history_of_five_layers(), 40)), R"(
run smollm2: running, elapsed 2m06s

capture  [#########]100% 10/10
transfer [##-------] 25% 1/6  eta 4m45s
assemble [---------]  0% 0/1

block  state         step     MSE  worst
    0  done                0.0176  0.042
    1  running      20/60   0.022   0.03
    2  quarantined              -      -
    3  ready                    -      -
    4  ready                    -      -
    5  ready                    -      -

MSE of each layer at its last validation
L0 0.011  L1 0.012  L2 0.013  L3 0.042
L4 0.01   L5 0.02   L6 0.03   L7 0.02
L8 0.02   L9 0.02

worker   doing                 speed
node7-1  transfer/b0001  2.08 s/step

evaluated  perplexity
teacher         12.53

warning: journal/000002.jsonl: torn
    tail, 31 bytes cut
)");
}

// SmolLM2's 30 layers, each a block: 22 are done, two train, the others wait.
RunStatus status_of_thirty_blocks() {
  RunStatus status = status_of_a_run();
  status.tasks.clear();
  status.num_blocks = 30;
  status.stages[1].total = 30;
  status.stages[1].done = 22;
  status.stages[1].quarantined = 0;
  for (const char* name : {"finetune", "evaluate"}) {
    StageStatus stage;
    stage.stage = wire::task_kind_from(name).value();
    stage.total = 1;
    status.stages.push_back(stage);
  }
  status.fraction = 0.41;
  status.eta_seconds = 312;
  for (int block = 0; block < 30; ++block) {
    TaskStatus task;
    task.stage = Stage::kTransfer;
    task.block = task.first_layer = block;
    task.num_layers = 1;
    task.state = block < 22 ? "done" : block < 24 ? "running" : "ready";
    task.attempts = block < 24 ? 1 : 0;
    const double mse = 0.0104 + 0.00137 * block;
    if (block < 22) task.result = {{"layers", {{{"layer", block}, {"mse", mse}}}}};
    if (block == 22 || block == 23) {
      task.worker = "node7-" + std::to_string(block - 22);
      task.progress.emplace();
      task.progress->phase = "training";
      task.progress->step = 12;
      task.progress->num_steps = 60;
    }
    status.tasks.push_back(task);
  }
  status.workers[0].uuid = "node7-0";
  status.workers[0].task = "transfer/b0022";
  status.workers.push_back(status.workers[0]);
  status.workers[1].uuid = "node7-1";
  status.workers[1].task = "transfer/b0023";
  status.warnings.clear();
  return status;
}

// 23 rows and the foot.
TEST(View, ThirtyLayersFitAScreenOfEightyColumnsAndTwentyFourRows) {
  EXPECT_EQ(joined(whole_view_of(status_of_thirty_blocks(), history_of_thirty_blocks(), 80, 23)),
            R"(
run runs/smollm2: running, elapsed 2m06s, term 3 on node7 (pid 4711)

capture  [################]100% 10/10  elapsed 31s
transfer [####------------] 25% 22/30  eta 4m45s  elapsed 1m35s  1 running
assemble [----------------]  0% 0/1
finetune [----------------]  0% 0/1
evaluate [----------------]  0% 0/1
total    [######----------] 41% eta 5m12s to the end

block  layers  state     step      MSE    worst   at  tries
   22  22      running  12/60  0.04054  0.04054  L22      1  node7-0, training
   23  23      running  12/60  0.04191  0.04191  L23      1  node7-1, training
... and 28 more: 22 done, 6 ready

MSE of each layer at its last validation
L0  0.0104  L1  0.0118  L2  0.0131  L3  0.0145  L4  0.0159  L5  0.0172
L6  0.0186  L7  0.02    L8  0.0214  L9  0.0227  L10 0.0241  L11 0.0255
L12 0.0268  L13 0.0282  L14 0.0296  L15 0.0309  L16 0.0323  L17 0.0337
L18 0.0351  L19 0.0364  L20 0.0378  L21 0.0392  L22 0.0405  L23 0.0419

worker   host   device  doing                 speed  heard
node7-0  node7  Xeon    transfer/b0022  2.08 s/step   2.2s
node7-1  node7  Xeon    transfer/b0023  2.08 s/step   2.2s
)");
}

TEST(View, ThirtyLayersFitAScreenOfFortyColumnsAndTwentyFourRows) {
  EXPECT_EQ(joined(whole_view_of(status_of_thirty_blocks(), history_of_thirty_blocks(), 40, 23)),
            R"(
run smollm2: running, elapsed 2m06s

capture  [#########]100% 10/10
transfer [##-------] 25%  eta 4m45s
assemble [---------]  0% 0/1
finetune [---------]  0% 0/1
evaluate [---------]  0% 0/1
total    [###------] 41% eta 5m12s

MSE of each layer at its last validation
L0  0.0104  L1  0.0118  L2  0.0131
L3  0.0145  L4  0.0159  L5  0.0172
L6  0.0186  L7  0.02    L8  0.0214
L9  0.0227  L10 0.0241  L11 0.0255
L12 0.0268  L13 0.0282  L14 0.0296
L15 0.0309  L16 0.0323  L17 0.0337
L18 0.0351  L19 0.0364  L20 0.0378
L21 0.0392  L22 0.0405  L23 0.0419

worker   doing                 speed
node7-0  transfer/b0022  2.08 s/step
node7-1  transfer/b0023  2.08 s/step
)");
}

TEST(View, NoLineIsEverWiderThanTheTerminal) {
  for (const RunStatus& status : {status_of_a_run(), status_of_thirty_blocks()}) {
    for (int width = 20; width <= 140; ++width) {
      for (const std::size_t rows : {std::size_t{5}, std::size_t{23}, kUnlimitedRows}) {
        const std::vector<std::string> lines =
            whole_view_of(status, history_of_five_layers(), width, rows);
        EXPECT_LE(lines.size(), std::max<std::size_t>(rows, 8)) << "the stages stay";
        for (const std::string& line : lines)
          EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
      }
    }
  }
}

TEST(View, LayersShowTheirLastValidation) {
  storage::History history = history_of_five_layers();
  history.series.erase("layer/6");
  EXPECT_EQ(joined(layer_lines(status_of_a_run(), 30, &history, /*draws_heat=*/false)), R"(
MSE of each layer at its last~
L0 0.011  L1 0.012  L2 0.013
L3 0.042  L4 0.01   L5 0.02
L6 -      L7 0.02   L8 0.02
L9 0.02
)");
}

TEST(View, AKeptSoftmaxLayerDoesNotShiftTheNamesOfTheOthers) {
  TaskStatus transfer;
  transfer.first_layer = 5;
  transfer.result = {{"layers", {{{"layer", 6}, {"mse", 0.01}}, {{"layer", 8}, {"mse", 0.03}}}}};
  storage::History history = measured(6, {0.01F, 0.5F, 0.03F});
  EXPECT_EQ(mse_of(transfer, &history).worst_layer(), 8) << "it is done: its result counts";
  EXPECT_DOUBLE_EQ(mse_of(transfer, nullptr).mean(), 0.02);
  transfer.result = nullptr;
  transfer.num_layers = 5;
  transfer.progress.emplace();
  history.series.erase("layer/7");
  EXPECT_EQ(mse_of(transfer, &history).worst_layer(), 8);
  EXPECT_FLOAT_EQ(static_cast<float>(mse_of(transfer, &history).worst()), 0.03F);
  history.series.clear();
  EXPECT_EQ(mse_of(transfer, &history).worst_layer(), -1);
  EXPECT_TRUE(std::isnan(mse_of(transfer, &history).mean()));
}

// What an attempt measured is known after a stop, until the block begins anew.
TEST(View, AnErrorOutlivesTheAttemptThatHasACheckpoint) {
  TaskStatus transfer;
  transfer.num_layers = 2;
  transfer.state = "ready";
  storage::History history = measured(0, {0.5F, 0.25F});
  transfer.checkpoint_step = 48;
  EXPECT_EQ(mse_of(transfer, &history).layers, (std::vector<double>{0.5, 0.25}));
  transfer.checkpoint_step = 0;
  EXPECT_TRUE(mse_of(transfer, &history).layers.empty());
  transfer.state = "running";
  transfer.token = 7;
  transfer.progress.emplace();
  history.attempts[7].started = 130.0;
  EXPECT_TRUE(mse_of(transfer, &history).layers.empty()) << "it has not measured yet";
  history.series["layer/0"].rows.push_back({0, 131.0, {0.01F, 0.75F}});
  EXPECT_EQ(mse_of(transfer, &history).worst(), 0.75);
  EXPECT_EQ(mse_of(transfer, &history).mean(), 0.75) << "layer 1's is of the attempt before";
}

TEST(View, StatusLineSaysHowFarHowWellAndHowLong) {
  EXPECT_EQ(status_line(status_of_a_run()),
            "blocks 1/6 done, 1 running, 2 retried, 1 quarantined | worst MSE layer 3 0.042 | "
            "transfer 25%  2.08 s/step | elapsed 2m06s | eta 4m45s");
}

TEST(View, ForeignTextCannotMoveTheCursor) {
  RunStatus status = status_of_a_run();
  status.warnings = {"\x1b[2J\x1b[Hgone"};
  status.workers[0].host = "\x1b]0;title\x07";
  for (const std::string& line : whole_view(status, 80)) {
    EXPECT_EQ(line.find('\x1b'), std::string::npos) << line;
  }
}

TEST(View, FinetuneShowsItsStepAndLossAndTheWholeItsEta) {
  RunStatus status = status_of_a_run();
  StageStatus stage;
  stage.stage = Stage::kFinetune;
  stage.total = stage.running = 1;
  stage.seconds = 90;
  stage.fraction = 0.45;
  stage.eta_seconds = 110;
  status.stages.push_back(stage);
  TaskStatus task;
  task.id = "finetune";
  task.stage = Stage::kFinetune;
  task.state = "running";
  task.progress.emplace();
  task.progress->phase = "training";
  task.progress->step = 18;
  task.progress->num_steps = 40;
  task.progress->loss = 2.3125;
  status.tasks.push_back(task);
  status.fraction = 0.6;
  status.eta_seconds = 130;
  const std::vector<std::string> lines = stage_lines(status, 100);
  EXPECT_EQ(lines[3],
            "finetune [#######---------] 45% step 18/40  loss 2.312  eta 1m50s  elapsed 1m30s  1 "
            "running");
  EXPECT_EQ(lines[4], "total    [#########-------] 60% eta 2m10s to the end");
  const std::string line = status_line(status);
  EXPECT_TRUE(
      line.ends_with("| finetune step 18/40  loss 2.312 | total 60% | elapsed 2m06s | eta 2m10s"))
      << line;
}

// What each stage took, beside what it was planned to take.
RunStatus planned_status() {
  RunStatus status = status_of_a_run();
  status.stages[0].planned = PlannedStage{.stage = Stage::kCapture,
                                          .seconds = 62,
                                          .memory_bytes = 672'000'000,
                                          .disk_bytes = 4'000'000'000};
  status.stages[0].memory_bytes = 581'000'000;
  status.stages[0].disk_bytes = 3'000'000'000;
  status.so_far = Spending{.gpu_hours = 12.3, .cost = 41.0};
  status.to_come = Spending{.gpu_hours = 30.1, .cost = 100.0};
  return status;
}

TEST(View, StagesShowTimeAndMemoryBesideThePlanWhereThereIsRoom) {
  const RunStatus status = planned_status();
  const std::vector<std::string> lines = stage_lines(status, 100);
  EXPECT_EQ(
      lines[0],
      "capture  [################]100% 10/10  elapsed 31s of 1m02s planned  581 MB of 672 MB");
  EXPECT_EQ(lines.back(), "so far 12.3 GPU-hours, cost 41; to come 30.1 GPU-hours, cost 100");
  for (const std::string& line : stage_lines(status, 50)) {
    EXPECT_LE(line.size(), 50U);
    EXPECT_EQ(line.find("planned"), std::string::npos) << line;
    EXPECT_EQ(line.find("to come"), std::string::npos) << line;
  }
  for (const std::string& line : stage_lines(status_of_a_run(), 100))
    EXPECT_EQ(line.find("planned"), std::string::npos) << line;
}

TEST(Explanation, OneTableHoldsWhatWasTakenAgainstThePlan) {
  const std::vector<std::string> lines = plan_lines(planned_status(), 120);
  ASSERT_EQ(lines.size(), 2U) << "only what was planned";
  EXPECT_NE(lines[0].find("GPU-hours"), std::string::npos) << lines[0];
  EXPECT_TRUE(lines[1].starts_with("capture")) << lines[1];
  for (const char* cell : {"31s", "1m02s", "581 MB", "672 MB", "3.0 GB", "4.0 GB"})
    EXPECT_NE(lines[1].find(cell), std::string::npos) << lines[1];
  EXPECT_TRUE(plan_lines(status_of_a_run(), 120).empty());
}

TEST(View, AFinetuneThatIsDoneSaysWhichStepItsAdapterIsOf) {
  RunStatus status = status_of_a_run();
  TaskStatus task;
  task.id = "finetune";
  task.stage = Stage::kFinetune;
  task.state = "done";
  task.result = {{"steps", 60}, {"best_step", 40}, {"stopped_early", true}};
  status.tasks.push_back(task);
  const std::string text = "adapter of step 40 of 60, the best by validation; stopped early";
  EXPECT_EQ(result_lines(status, 80).back(), text);
  status.tasks = {task};
  EXPECT_EQ(explain_run(status).back(), "finetune is done; " + text);
  task.result = {{"steps", 60}, {"best_step", 0}};
  EXPECT_EQ(adapter_text(task),
            "adapter of step 0 of 60, the best by validation; no step made the student better");
  for (const nlohmann::json& other : {nlohmann::json{{"steps", 60}}, nlohmann::json()}) {
    task.result = other;  // of an earlier build; of a task that runs
    EXPECT_EQ(adapter_text(task), "");
  }
}

TEST(View, ANarrowStatusLineLosesWholePartsAndNeverItsEta) {
  const RunStatus status = status_of_a_run();
  EXPECT_EQ(status_line(status, 111),
            "blocks 1/6 done, 1 running, 1 quarantined | transfer 25%  2.08 s/step | "
            "elapsed 2m06s | eta 4m45s");
  EXPECT_EQ(status_line(status, 79),
            "blocks 1/6 done, 1 quarantined | transfer 25% | elapsed 2m06s | eta 4m45s");
  EXPECT_EQ(status_line(status, 40), "1 quarantined | transfer 25% | eta 4m45s");
  for (int width = 9; width < 130; ++width)
    EXPECT_TRUE(status_line(status, width).ends_with("eta 4m45s")) << width;
}

TEST(View, WithoutAnEstimateTheEtaIsADash) {
  RunStatus status = status_of_a_run();
  status.fraction = 0.01;  // of the whole: the estimate of one stage would be too small
  EXPECT_TRUE(status_line(status).ends_with("| total 1% | elapsed 2m06s | eta -"))
      << status_line(status);
}

TEST(View, AStopThatWasAskedForIsNoOtherTry) {
  RunStatus status = status_of_a_run();
  status.tasks[1].wasted = 0;
  EXPECT_EQ(status.tasks[1].tries(), 1);
  EXPECT_NE(status_line(status).find(", 1 retried,"), std::string::npos) << status_line(status);
}

TEST(View, AStopIsAcknowledgedWithTheStageThatIsWaitedFor) {
  RunStatus status = status_of_a_run();
  status.is_stopping = true;
  EXPECT_TRUE(status_line(status, 60).starts_with("stopping: waiting for a checkpoint of transfer"))
      << status_line(status, 60);
}

TEST(View, TheWorstIsKeptFromBeforeAStopOrSaysOfHowManyBlocksItIs) {
  RunStatus status = status_of_a_run();
  status.tasks[3].checkpoint_step = 48;
  storage::History history = history_of_five_layers();
  const auto line = [&] { return status_line(status, kUnlimitedWidth, &history); };
  EXPECT_NE(line().find("worst MSE (2 of 6 blocks) layer 3 0.042"), std::string::npos) << line();
  history.series.merge(measured(15, {0.1F, 0.2F}).series);
  EXPECT_NE(line().find("worst MSE layer 16 0.2"), std::string::npos) << line();
}

TEST(View, EvaluationsComeInTheOrderOfTheirStages) {
  RunStatus status = status_of_a_run();
  for (const char* subject : {"lora", "transfer"}) {
    TaskStatus task = status.tasks.back();
    task.id = std::string("evaluate/") + subject;
    status.tasks.insert(status.tasks.begin(), task);
  }
  const std::vector<std::string> lines = result_lines(status, 80);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_TRUE(lines[1].starts_with("teacher"));
  EXPECT_TRUE(lines[2].starts_with("transfer"));
  EXPECT_TRUE(lines[3].starts_with("lora"));
}

// A worker's name says nothing of its work, and neither does a number without its unit.
TEST(View, EachWorkerShowsItsOwnSpeedAndTheStatusLineTheirMean) {
  RunStatus status = status_of_a_run();
  status.stages[0].done = 8;
  status.stages[0].running = 2;
  for (const double speed : {1159.4, 901.0}) {
    WorkerStatus worker = status.workers[0];
    worker.uuid = "node8-" + std::to_string(status.workers.size());
    worker.task = "capture/b0002/p00";
    worker.speed = {0.5, speed};
    status.workers.push_back(worker);
  }
  WorkerStatus idle = status.workers[0];
  idle.task = "";
  idle.phase = "idle";
  idle.speed.reset();
  status.workers.push_back(idle);
  EXPECT_EQ(joined(worker_lines(status, 80)), R"(
worker   host   device  doing                      speed  heard
node7-1  node7  Xeon    transfer/b0001       2.08 s/step   2.2s
node8-1  node7  Xeon    capture/b0002/p00  1159 tokens/s   2.2s
node8-2  node7  Xeon    capture/b0002/p00   901 tokens/s   2.2s
node7-1  node7  Xeon    idle                               2.2s
)");
  const std::string line = status_line(status);
  EXPECT_NE(line.find("| capture 100%  1030 tokens/s | transfer 25%  2.08 s/step |"),
            std::string::npos)
      << line;
  const nlohmann::json json = status;
  EXPECT_DOUBLE_EQ(json["elapsed_seconds"].get<double>(), 126.0);
  EXPECT_DOUBLE_EQ(json["workers"][0]["seconds_per_step"].get<double>(), 2.0834);
  EXPECT_DOUBLE_EQ(json["workers"][1]["tokens_per_second"].get<double>(), 1159.4);
  EXPECT_FALSE(json["workers"][3].contains("tokens_per_second"));
  EXPECT_EQ(nlohmann::json(json.get<RunStatus>()), json);
}

// The GPU's memory counts where a worker has one; else there is no other.
TEST(View, PeakMemoryIsAColumnWhereThereIsRoomAndAlwaysExplained) {
  RunStatus status = status_of_a_run();
  EXPECT_EQ(joined(block_lines(status, 100)).find("memory"), std::string::npos) << "not measured";
  const std::string narrow = joined(block_lines(status, 80));
  status.tasks[0].result["peak_memory"] = wire::PeakMemory{.host_bytes = 2'100'000'000,
                                                           .device_bytes = 61'200'000'000,
                                                           .device_reserved_bytes = 64'000'000'000};
  status.tasks[1].progress->peak_memory.host_bytes = 1'500'000'000;
  EXPECT_EQ(joined(block_lines(status, 80)), narrow) << "the notes keep their room";
  const std::vector<std::string> lines = block_lines(status, 100);
  EXPECT_NE(lines.at(0).find("tries   memory"), std::string::npos) << lines.at(0);
  EXPECT_NE(lines.at(1).find("1  61.2 GB"), std::string::npos) << lines.at(1);
  EXPECT_NE(lines.at(2).find("2   1.5 GB  node7-1"), std::string::npos) << lines.at(2);
  EXPECT_NE(
      explain_block(status, 0).front().find("; took at most 61.2 GB of the GPU's memory (64.0 "
                                            "GB reserved) and 2.1 GB of the host's"),
      std::string::npos)
      << explain_block(status, 0).front();
  EXPECT_NE(explain_block(status, 1).front().find("; took at most 1.5 GB of the host's"),
            std::string::npos);
  const nlohmann::json task = nlohmann::json(status)["tasks"][0];
  EXPECT_EQ(task["result"]["peak_memory"]["device_bytes"], 61'200'000'000U);
  status.tasks[0].result["peak_memory"] = "much";
  EXPECT_EQ(status.tasks[0].peak_memory(), wire::PeakMemory{}) << "no crash over a strange result";
}

TEST(View, WhatKilledProcessesCostIsShownByStageAndByBlock) {
  RunStatus status = status_of_a_run();
  EXPECT_TRUE(loss_lines(status, 80).empty());
  status.tasks[0].lost_steps = 11;
  status.tasks[1].lost_steps = 1;
  EXPECT_EQ(loss_lines(status, 80),
            std::vector<std::string>{"lost to failures and done again: 12 steps of transfer"});
  const std::string block = explain_block(status, 1).front();
  EXPECT_NE(block.find("; try 2; lost to failures: 1 step"), std::string::npos) << block;
  EXPECT_NE(joined(whole_view(status, 80)).find("12 steps of transfer"), std::string::npos);
  EXPECT_EQ(nlohmann::json(status).get<RunStatus>().tasks[0].lost_steps, 11);
}

TEST(View, ABlockIsExplainedInASentence) {
  RunStatus status = status_of_a_run();
  TaskStatus& task = status.tasks[3];
  task.checkpoint_step = 48;
  task.num_steps = 60;
  const storage::History history = measured(15, {0.25F, 0.75F});
  EXPECT_EQ(explain_block(status, 3, &history).front(),
            "block 3 (layers 15-19) is ready and waits for a free worker; it goes on from step 48 "
            "of 60; last measured MSE 0.5, worst layer 16 with 0.75");
  EXPECT_EQ(explain_run(status).size(), 7U) << "one a block, one for the evaluation";
}

}  // namespace
}  // namespace hedgerow::coordinator::cli
