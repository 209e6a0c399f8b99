// Captures and transfers that are told to stop, or that somebody else had nearly finished: nothing
// is left by halves and no byte changes.
#include "pipeline_fixture.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::tests {
namespace {

// A forward may last longer than whoever stops us waits.
TEST_F(Pipeline, AStopAtAnyPlaceInsideAForwardIsHeardAndCostsAStepAtMost) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.transfer.checkpoint_every = 100;
    recipe.plan.sequences_per_forward = 4;
  });
  worker::RunContext run(root);
  LocalTaskContext straight(run.layout(), 1);
  int asked_in_all = 0;
  straight.stop_when = [&](const LocalTaskContext&) { return ++asked_in_all < 0; };
  const auto whole = run_transfer(run, straight, transfer_task(run, 0, {0, 2}, 1, {}));
  const auto expected =
      tensor_hashes(worker::attempt_path(run.layout(), 1, whole.files.front().name));
  // Each step is one forward: 2 layers x 4 sequences, asked at least once each.
  EXPECT_GT(asked_in_all, 8 * recipe_.transfer.max_steps);

  storage::FencingToken token = 1;
  for (int place = 1; place < asked_in_all; place += asked_in_all / 6) {
    worker::RunContext another(root);  // which loads the block anew
    LocalTaskContext first(run.layout(), ++token);
    int asked = 0;
    first.stop_when = [&](const LocalTaskContext&) { return ++asked >= place; };
    ASSERT_FALSE(run_transfer(another, first, transfer_task(run, 0, {0, 2}, token, {})).finished);
    EXPECT_EQ(asked, place) << "it went on after it was told";
    wire::Task task = transfer_task(run, 0, {0, 2}, ++token, {});
    if (!first.checkpoints.empty()) task.resume = first.checkpoints.rbegin()->second;
    LocalTaskContext second(run.layout(), token);
    const auto finished = run_transfer(run, second, task);
    EXPECT_EQ(tensor_hashes(worker::attempt_path(run.layout(), token, finished.files.front().name)),
              expected)
        << "stopped at look " << place;
  }
}

TEST_F(Pipeline, ACaptureToldToStopInsideAForwardLeavesNoHalfAShard) {
  const auto root =
      make_run("run", [](storage::Recipe& recipe) { recipe.plan.sequences_per_forward = 4; });
  for (int place = 1; place < 50; place += 7) {
    worker::RunContext run(root);
    const auto token = static_cast<storage::FencingToken>(place);
    LocalTaskContext context(run.layout(), token);
    int asked = 0;
    context.stop_when = [&](const LocalTaskContext&) { return ++asked >= place; };
    EXPECT_FALSE(run_capture(run, context, capture_task(run, 0, {0, 2}, token, {})).finished);
    EXPECT_EQ(asked, place) << "it went on after it was told";
    const auto attempt = root / storage::RunLayout::attempt_directory(token);
    int left = 0;
    std::error_code not_begun;
    for (const auto& entry : std::filesystem::directory_iterator(attempt, not_begun))
      left += entry.path().extension() == ".h5" ? 1 : 0;
    EXPECT_EQ(left, 0) << "a shard that is not whole stayed";
  }
}

TEST_F(Pipeline, AValidationThatIsStoppedIsDoneAgainAndChangesNoByte) {
  const auto root = make_run("run", [](storage::Recipe& recipe) {
    recipe.transfer.validate_every = 2;
    recipe.transfer.checkpoint_every = 100;
    recipe.plan.sequences_per_forward = 1;
  });
  worker::RunContext run(root);
  LocalTaskContext straight(run.layout(), 1);
  const auto whole = run_transfer(run, straight, transfer_task(run, 0, {0, 2}, 1, {}));

  LocalTaskContext first(run.layout(), 2);
  first.stop_when = [](const LocalTaskContext& context) {
    return context.reports.back().step == 2 && context.reports.back().phase == "validating";
  };
  ASSERT_FALSE(run_transfer(run, first, transfer_task(run, 0, {0, 2}, 2, {})).finished);
  ASSERT_EQ(first.checkpoints.size(), 1U);
  wire::Task task = transfer_task(run, 0, {0, 2}, 3, {});
  task.resume = first.checkpoints.rbegin()->second;
  LocalTaskContext second(run.layout(), 3);
  const auto finished = run_transfer(run, second, task);
  EXPECT_EQ(finished.result.at("layers"), whole.result.at("layers"));
  EXPECT_EQ(tensor_hashes(worker::attempt_path(run.layout(), 3, finished.files.front().name)),
            tensor_hashes(worker::attempt_path(run.layout(), 1, whole.files.front().name)));
}

TEST_F(Pipeline, StoppedCaptureLeavesOnlyWholeShards) {
  const auto root = make_run("run");
  worker::RunContext run(root);
  LocalTaskContext context(run.layout(), 1);
  context.stop_when = [](const LocalTaskContext& seen) { return seen.reports.back().step >= 6; };
  wire::Task task = capture_task(run, 0, {0, 2}, 1, {});
  task.sequences_per_shard = 4;
  task.num_shards = 4;
  EXPECT_FALSE(run_capture(run, context, task).finished);
  EXPECT_EQ(context.shards.size(), 1U);
  for (const auto& entry : std::filesystem::directory_iterator(root / "attempts/t1")) {
    EXPECT_NE(entry.path().extension(), ".h5") << "an unfinished shard was left: " << entry.path();
  }
}

// Found by a kill storm: a worker that died between the commit of its last shard and its word that
// the capture is done leaves one without shards, which the next worker failed at three times.
TEST_F(Pipeline, ACaptureOfWhichOnlyTheLastWordIsMissingIsDoneAtOnce) {
  const auto root =
      make_run("run", [](storage::Recipe& recipe) { recipe.plan.layers_per_block = 2; });
  const PipelineResult result = run_pipeline(root);
  worker::RunContext run(root);
  for (const int block : {0, 1}) {
    wire::Task task = capture_task(run, block, {2 * block, 2}, 90, {});
    task.num_shards = 0;
    const storage::RunLayout layout(root);
    LocalTaskContext context(layout, 90);
    const worker::TaskResult done = run_capture(run, context, task);
    EXPECT_TRUE(done.finished);
    EXPECT_EQ(done.result.at("tokens"), 0);
    EXPECT_TRUE(context.shards.empty());
  }
}

}  // namespace
}  // namespace hedgerow::tests
