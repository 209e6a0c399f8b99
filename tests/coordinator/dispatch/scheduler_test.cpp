#include "coordinator/dispatch/scheduler.hpp"

#include "coordinator/state/task_graph.hpp"
#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;

WorkerView worker(const std::string& uuid, int held_block = -1, std::uint64_t memory = 0) {
  return {uuid, memory, held_block};
}

std::optional<TaskId> choose(const State& state,
                             const WorkerView& asking,
                             const KeepBoundaries& keep = kKeepAll) {
  return choose_task(state, asking, {asking}, {}, keep);
}

TEST(Scheduler, CapturesGoAheadOfTransfersAndTransfersAheadOfEvaluations) {
  State state = started_state();
  EXPECT_EQ(choose(state, worker("w1")), TaskId::capture(0, 0));
  grant(state, TaskId::capture(0, 0), 1);
  grant(state, TaskId::capture(0, 1), 2);
  EXPECT_EQ(choose(state, worker("w2")), TaskId::transfer(0));
  grant(state, TaskId::transfer(0), 3);
  EXPECT_EQ(choose(state, worker("w3")), TaskId::evaluate(Subject::kTeacher));
  grant(state, TaskId::evaluate(Subject::kTeacher), 4);
  EXPECT_EQ(choose(state, worker("w4")), std::nullopt);
}

TEST(Scheduler, LogitsGoBehindTransfersAndReadTheLastBoundaryThroughTheLastLayer) {
  State state;
  must(state, run_with_logits());
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece)
      complete(state, TaskId::capture(block, piece), state.last_token + 1);
  }
  for (int block = 0; block < 3; ++block) {
    EXPECT_EQ(choose(state, worker("w1")), TaskId::transfer(block));
    complete(state, TaskId::transfer(block), state.last_token + 1);
  }
  ASSERT_EQ(choose(state, worker("w1")), TaskId::logits(0));
  grant(state, TaskId::logits(0), 50);
  const wire::Task task = make_wire_task(state, TaskId::logits(0), 50);
  EXPECT_EQ(task.kind, wire::TaskKind::kLogits);
  EXPECT_EQ(task.piece, 0);
  EXPECT_EQ(task.block, 2);
  EXPECT_EQ(task.first_layer, 4);
  EXPECT_EQ(task.num_layers, 1);
  EXPECT_EQ(task.inputs, std::vector{state.shards[2][0].file});
  EXPECT_EQ(choose_task(state, worker("w2", -1, kGiB), {}, {.logits = 2 * kGiB}, kKeepAll),
            std::nullopt)
      << "an evaluation that begins now would keep the ranks waiting";
}

TEST(Scheduler, FinetuneReadsTheStudentThenTheLogitsInTheirOrder) {
  State state;
  RunStarted run = run_with_logits();
  run.geometry.logits_from_boundary = false;
  run.geometry.num_logit_pieces = 3;
  run.geometry.sequences_per_logit_piece = 8;
  must(state, run);
  EXPECT_TRUE(is_ready(state, state.task(TaskId::logits(2)))) << "from tokens: nothing to wait for";
  const wire::Task piece = make_wire_task(state, TaskId::logits(2), 1);
  EXPECT_EQ(piece.block, -1);
  EXPECT_EQ(piece.num_layers, 5);
  EXPECT_EQ(piece.first_shard, 2);
  EXPECT_EQ(piece.sequences_per_shard, 8);
  for (const int index : {2, 0, 1}) complete(state, TaskId::logits(index), state.last_token + 1);
  std::vector<std::string> names;
  for (const auto& file : make_wire_task(state, TaskId::finetune(), 9).inputs)
    names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"out.t2", "out.t3", "out.t1"}));
}

TEST(Scheduler, AWorkerGetsTheBlockWhoseWeightsItHolds) {
  State state = started_state();
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  EXPECT_EQ(choose(state, worker("w1")), TaskId::transfer(0));
  EXPECT_EQ(choose(state, worker("w1", 2)), TaskId::transfer(2));
  EXPECT_EQ(choose(state, worker("w1", 1)), TaskId::transfer(1));
}

TEST(Scheduler, ATaskMustFitTheWorkersMemory) {
  const State state = started_state();
  const MemoryNeeds needs{.capture = 2 * kGiB, .transfer = 8 * kGiB, .evaluate = kGiB};
  const auto for_memory = [&](std::uint64_t bytes) {
    const WorkerView asking = worker("w1", -1, bytes);
    return choose_task(state, asking, {asking}, needs, kKeepAll);
  };
  EXPECT_EQ(for_memory(4 * kGiB), TaskId::capture(0, 0));
  EXPECT_EQ(for_memory(kGiB), TaskId::evaluate(Subject::kTeacher));
  EXPECT_EQ(for_memory(kGiB / 2), std::nullopt);
}

TEST(Scheduler, AFailedTaskGoesToAnotherWorkerIfThereIsOne) {
  State state = started_state();
  grant(state, TaskId::capture(0, 0), 1, "w1");
  must(state, TaskFailed{1, storage::ErrorKind::kInternal, "boom"});
  EXPECT_EQ(choose(state, worker("w1")), TaskId::capture(0, 0)) << "nobody else is there";
  const std::vector<WorkerView> both = {worker("w1"), worker("w2")};
  EXPECT_EQ(choose_task(state, both[0], both, {}, kKeepAll), TaskId::capture(0, 1));
  EXPECT_EQ(choose_task(state, both[1], both, {}, kKeepAll), TaskId::capture(0, 0));
}

TEST(Scheduler, AfterThreeFailuresHereATaskWaitsForASecondWorker) {
  State state = started_state();
  for (std::uint64_t token = 1; token <= 3; ++token) {
    grant(state, TaskId::capture(0, 0), token, "w1");
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "boom"});
  }
  EXPECT_EQ(choose(state, worker("w1")), TaskId::capture(0, 1));
  EXPECT_EQ(choose(state, worker("w2")), TaskId::capture(0, 0));
}

TEST(Scheduler, CapturesWaitForTheDiskWhenBoundariesAreNotKept) {
  Geometry geometry = small_geometry();
  geometry.num_layers = 8;  // 4 blocks, boundaries 1 to 3
  State state;
  must(state, RunStarted{geometry, "test"});
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  EXPECT_EQ(choose(state, worker("w1"), kKeepAll), TaskId::capture(2, 0));
  EXPECT_EQ(choose(state, worker("w1"), kKeepNone), TaskId::transfer(0))
      << "boundary 1 still lies on disk";
  complete(state, TaskId::transfer(1), ++token);
  must(state, BoundaryDropped{1});
  EXPECT_EQ(choose(state, worker("w1"), kKeepNone), TaskId::capture(2, 0));
}

TEST(Scheduler, ACaptureCoversTheMissingShardsAloneAndReadsOnlyTheirInputs) {
  Geometry geometry = small_geometry();
  geometry.shards_per_capture = 2;
  State state;
  must(state, RunStarted{geometry, "test"});
  complete(state, TaskId::capture(0, 0), 1);
  grant(state, TaskId::capture(1, 0), 2);
  must(state, ShardCommitted{2, 0, file_named("hidden/b0002/s00000.t2.h5")});
  must(state, TaskReleased{2, "SIGTERM"});
  grant(state, TaskId::capture(1, 0), 3);
  const wire::Task task = make_wire_task(state, TaskId::capture(1, 0), 3);
  EXPECT_EQ(task.first_shard, 1);
  EXPECT_EQ(task.num_shards, 1);
  ASSERT_EQ(task.inputs.size(), 1U);
  EXPECT_EQ(task.inputs[0].name, "hidden/b0001/s00001.t1.h5");
  EXPECT_EQ(task.first_layer, 2);
}

TEST(Scheduler, ATransferResumesFromItsLastCheckpoint) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1);
  must(state, CheckpointCommitted{1, 30, file_named("attempts/t1/checkpoint.s30")});
  must(state, LeaseRevoked{1, "no heartbeat"});
  const wire::Task task = make_wire_task(state, TaskId::transfer(0), 2);
  ASSERT_TRUE(task.resume);
  EXPECT_EQ(task.resume->name, "attempts/t1/checkpoint.s30");
  EXPECT_EQ(task.seed, 7U);
}

// mpirun places its ranks: a worker too small for one of them is none of its business.
TEST(Scheduler, AFinetuneThatNoWorkerCouldHoldIsNoMisfit) {
  State state = started_state();
  std::uint64_t token = 0;
  for (int block = 0; block + 1 < 3; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  for (int block = 0; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  complete(state, TaskId::assemble(), ++token);
  for (const Subject subject : {Subject::kTeacher, Subject::kTransfer})
    complete(state, TaskId::evaluate(subject), ++token);
  ASSERT_TRUE(is_ready(state, state.task(TaskId::finetune())));
  const MemoryNeeds needs{.transfer = 2 * kGiB, .finetune = 900 * kGiB};
  EXPECT_TRUE(misfits(state, {worker("w1", -1, kGiB)}, needs).empty());
  EXPECT_EQ(need_of(TaskId::finetune(), needs), 900 * kGiB);
}

}  // namespace
}  // namespace hedgerow::coordinator
