#include "coordinator/simulate/simulation.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/support/refusal.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::uint64_t kGiB = 1ULL << 30;
constexpr double kCaptureSeconds = 10.0, kTransferSeconds = 100.0;

// A layer a block, a shard a piece; captures and transfers alone.
Geometry geometry_of(int num_blocks, int num_pieces) {
  Geometry geometry;
  geometry.num_layers = num_blocks;
  geometry.num_shards = num_pieces;
  geometry.sequences_per_shard = 4;
  return geometry;
}

SimulationInput input_of(int num_blocks, int num_pieces, int num_nodes) {
  SimulationInput input;
  input.geometry = geometry_of(num_blocks, num_pieces);
  input.workers = {{.name = "node", .nodes = num_nodes}};
  input.task_seconds = [](const TaskId& id, std::size_t) {
    return id.stage == Stage::kCapture ? kCaptureSeconds : kTransferSeconds;
  };
  return input;
}

// One transfer of 10,000 s on one worker whose node fails.
SimulationInput long_transfer(double mean_seconds_between_failures, std::uint64_t seed) {
  SimulationInput input = input_of(1, 1, 1);
  input.task_seconds = [](const TaskId&, std::size_t) { return 10'000.0; };
  input.workers[0].mean_seconds_between_failures = mean_seconds_between_failures;
  input.seed = seed;
  return input;
}

// All zero if the run has no such stage.
SimulatedStage stage_of(const Simulation& simulation, const std::string& name) {
  for (const SimulatedStage& stage : simulation.stages) {
    if (to_string(stage.stage) == name) return stage;
  }
  return {};
}

double lost_seconds(const Simulation& simulation) {
  double sum = 0.0;
  for (const SimulatedStage& stage : simulation.stages) sum += stage.lost_worker_seconds;
  return sum;
}

TEST(Simulation, WithoutFailuresEqualTasksTakeTheRoundsThatTheWorkersNeed) {
  for (const int blocks : {1, 6, 7, 12}) {
    for (const int workers : {1, 3, 4}) {
      const Simulation simulation = simulate(input_of(blocks, workers, workers));
      const int rounds = (blocks + workers - 1) / workers;
      EXPECT_TRUE(simulation.finished) << simulation.problem;
      // A boundary after the other, each by all workers at once, then the transfers.
      EXPECT_DOUBLE_EQ(simulation.makespan_seconds,
                       (blocks - 1) * kCaptureSeconds + rounds * kTransferSeconds)
          << blocks << " blocks on " << workers << " workers";
      EXPECT_DOUBLE_EQ(stage_of(simulation, "transfer").busy_worker_seconds,
                       blocks * kTransferSeconds);
      EXPECT_EQ(stage_of(simulation, "capture").tasks, (blocks - 1) * workers);
    }
  }
}

TEST(Simulation, CapturesOfOnePieceAreAChain) {
  SimulationInput input = input_of(9, 1, 9);
  input.geometry.num_layers = 18;
  input.geometry.layers_per_block = 2;
  const Simulation simulation = simulate(input);
  // Each transfer begins as its boundary is there; the last one begins last.
  EXPECT_DOUBLE_EQ(simulation.makespan_seconds, 8 * kCaptureSeconds + kTransferSeconds);
  EXPECT_DOUBLE_EQ(stage_of(simulation, "capture").last_end, 8 * kCaptureSeconds);
}

TEST(Simulation, WorkersThatAllHaveWorkToTheEndAreUtilizedFully) {
  SimulationInput input = input_of(6, 3, 3);
  input.workers[0].gpus_per_worker = 2;
  const Simulation simulation = simulate(input);
  EXPECT_DOUBLE_EQ(simulation.utilization, 1.0);
  EXPECT_DOUBLE_EQ(simulation.gpu_hours_held, 3 * 2 * simulation.makespan_seconds / 3600.0);
  EXPECT_DOUBLE_EQ(simulation.gpu_hours_useful, simulation.gpu_hours_held);
  EXPECT_EQ(simulation.gpu_hours_lost, 0.0);
  EXPECT_LT(simulate(input_of(7, 3, 3)).utilization, 0.95);
}

TEST(Simulation, ATaskThatFitsOnlyTheLargerWorkersRunsThere) {
  SimulationInput input = input_of(6, 2, 4);
  input.workers[0].memory_bytes = kGiB;
  input.workers.push_back({.name = "large", .memory_bytes = 8 * kGiB});
  input.needs = {.capture = kGiB / 2, .transfer = 4 * kGiB};
  std::set<std::size_t> kinds;
  input.task_seconds = [&kinds](const TaskId& id, std::size_t kind) {
    if (id.stage == Stage::kTransfer) kinds.insert(kind);
    return id.stage == Stage::kTransfer ? kTransferSeconds : 0.0;
  };
  const Simulation simulation = simulate(input);
  EXPECT_TRUE(simulation.finished) << simulation.problem;
  EXPECT_EQ(kinds, std::set<std::size_t>{1});
  EXPECT_DOUBLE_EQ(simulation.makespan_seconds, 6 * kTransferSeconds);
}

TEST(Simulation, ATaskThatFitsNobodyIsNamedAndTheRestIsDone) {
  SimulationInput input = input_of(3, 2, 2);
  input.geometry.evaluates = {Subject::kTeacher, Subject::kTransfer};
  input.workers[0].memory_bytes = 8 * kGiB;
  input.needs = {.transfer = 64 * kGiB};
  const Simulation simulation = simulate(input);
  EXPECT_FALSE(simulation.finished);
  EXPECT_EQ(simulation.problem.find("transfer/b0000 is given up: needs 65536 MiB"), 0U)
      << simulation.problem;
  EXPECT_NE(simulation.problem.find("(and 2 tasks more)"), std::string::npos) << simulation.problem;
  EXPECT_EQ(stage_of(simulation, "capture").tasks, 4);
  EXPECT_EQ(stage_of(simulation, "evaluate").tasks, 1);
}

TEST(Simulation, AFailureCostsAtMostACheckpointItsNoticeAndTheRestart) {
  int failures = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const SimulationInput input = long_transfer(5'000.0, seed);
    const Simulation simulation = simulate(input);
    EXPECT_TRUE(simulation.finished) << simulation.problem;
    const double most = input.checkpoint_seconds + input.lease_seconds + input.restart_seconds;
    EXPECT_LE(simulation.makespan_seconds - 10'000.0, simulation.failures * most) << seed;
    EXPECT_NEAR(simulation.makespan_seconds,
                10'000.0 + lost_seconds(simulation) + simulation.failures * input.restart_seconds,
                1e-3)
        << seed;
    EXPECT_NEAR(stage_of(simulation, "transfer").busy_worker_seconds, 10'000.0, 1e-3) << seed;
    failures += simulation.failures;
  }
  // 10,000 s of work at a failure in 5,000 s, 50 times.
  EXPECT_NEAR(failures, 100, 30);
}

TEST(Simulation, ADeadWorkersTaskGoesOnElsewhereWhenItsLeaseHasRunOut) {
  SimulationInput input = long_transfer(1.0, 3);
  input.workers[0].mean_seconds_between_failures = 8'000.0;
  input.workers[0].nodes = 20;
  input.restart_seconds = 1e6;
  const Simulation simulation = simulate(input);
  ASSERT_TRUE(simulation.finished) << simulation.problem;
  ASSERT_GT(lost_seconds(simulation), 0.0);
  const double waited = simulation.makespan_seconds - 10'000.0 - lost_seconds(simulation);
  EXPECT_NEAR(std::remainder(waited, input.lease_seconds), 0.0, 1e-3);
  EXPECT_LT(waited, 20 * input.lease_seconds);
}

TEST(Simulation, ShardsThatACaptureCommittedBeforeAFailureStay) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SimulationInput input = input_of(2, 50, 2);
    input.geometry.shards_per_capture = 50;
    input.task_seconds = [](const TaskId& id, std::size_t) {
      return id.stage == Stage::kCapture ? 5'000.0 : 1.0;
    };
    input.workers[0].mean_seconds_between_failures = 1'000.0;
    input.seed = seed;
    const Simulation simulation = simulate(input);
    ASSERT_TRUE(simulation.finished) << simulation.problem;
    const SimulatedStage capture = stage_of(simulation, "capture");
    EXPECT_NEAR(capture.busy_worker_seconds, 5'000.0, 1e-3) << seed;
    EXPECT_LE(capture.lost_worker_seconds, simulation.failures * 100.0) << seed;
  }
}

TEST(Simulation, MoreFailuresDoNotShortenARunOnTheAverage) {
  double before = 0.0;
  for (const double mean : {0.0, 40'000.0, 10'000.0, 2'500.0}) {
    double sum = 0.0;
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      SimulationInput input = input_of(12, 8, 4);
      input.task_seconds = [](const TaskId& id, std::size_t) {
        return id.stage == Stage::kCapture ? 100.0 : 1'000.0;
      };
      input.workers[0].mean_seconds_between_failures = mean;
      input.seed = seed;
      const Simulation simulation = simulate(input);
      EXPECT_TRUE(simulation.finished) << simulation.problem;
      EXPECT_NEAR(stage_of(simulation, "transfer").busy_worker_seconds, 12'000.0, 1e-3);
      sum += simulation.makespan_seconds;
    }
    EXPECT_GT(sum, before) << "a node fails once in " << mean << " s";
    before = sum;
  }
}

TEST(Simulation, TheSameSeedGivesTheSameAnswerAndAnotherSeedAnother) {
  const Simulation first = simulate(long_transfer(3'000.0, 1));
  const Simulation again = simulate(long_transfer(3'000.0, 1));
  const Simulation other = simulate(long_transfer(3'000.0, 2));
  EXPECT_EQ(first.makespan_seconds, again.makespan_seconds);
  EXPECT_EQ(first.failures, again.failures);
  EXPECT_EQ(lost_seconds(first), lost_seconds(again));
  EXPECT_NE(first.makespan_seconds, other.makespan_seconds);
}

TEST(Simulation, UsefulAndLostGpuHoursAreOfTheHeldOnes) {
  SimulationInput input = input_of(12, 8, 4);
  input.workers[0].workers_per_node = 2;
  input.workers[0].gpus_per_worker = 4;
  input.workers[0].mean_seconds_between_failures = 300.0;
  const Simulation simulation = simulate(input);
  ASSERT_TRUE(simulation.finished) << simulation.problem;
  EXPECT_GT(simulation.gpu_hours_lost, 0.0);
  EXPECT_DOUBLE_EQ(simulation.gpu_hours_held, 32 * simulation.makespan_seconds / 3600.0);
  EXPECT_DOUBLE_EQ(simulation.gpu_hours_lost, 4 * lost_seconds(simulation) / 3600.0);
  EXPECT_NEAR(
      simulation.gpu_hours_useful, simulation.gpu_hours_held * simulation.utilization, 1e-9);
  EXPECT_LE(simulation.gpu_hours_useful + simulation.gpu_hours_lost, simulation.gpu_hours_held);
}

TEST(Simulation, CapturesWaitForTheDeletionOfBoundariesThatAreNotKept) {
  std::set<int> transfers;  // that have begun
  bool ran_ahead = false;
  SimulationInput input = input_of(8, 2, 4);
  input.task_seconds = [&](const TaskId& id, std::size_t) {
    if (id.stage == Stage::kTransfer) transfers.insert(id.block);
    for (int block = 1; id.stage == Stage::kCapture && block < id.block; ++block)
      ran_ahead = ran_ahead || !transfers.contains(block);
    return id.stage == Stage::kCapture ? kCaptureSeconds : kTransferSeconds;
  };
  const Simulation all = simulate(input);
  EXPECT_TRUE(ran_ahead);
  transfers.clear();
  ran_ahead = false;
  input.keep = {KeepBoundaries::Kind::kNone, 1};
  const Simulation none = simulate(input);
  EXPECT_TRUE(none.finished) << none.problem;
  EXPECT_FALSE(ran_ahead);
  EXPECT_GT(none.makespan_seconds, all.makespan_seconds);
}

TEST(Simulation, FinetuneHasTheMachineToItselfAndGoesOnFromItsCheckpoint) {
  SimulationInput input = input_of(2, 2, 4);
  input.geometry.finetunes = true;
  input.geometry.evaluates = {Subject::kTeacher, Subject::kTransfer, Subject::kLora};
  input.workers[0].gpus_per_worker = 1;
  input.finetune_nodes = 3;
  input.finetune_gpus = 3;
  input.task_seconds = [](const TaskId& id, std::size_t) {
    return id.stage == Stage::kFinetune ? 20'000.0 : 10.0;
  };
  const Simulation smooth = simulate(input);
  EXPECT_TRUE(smooth.finished) << smooth.problem;
  EXPECT_EQ(smooth.makespan_seconds, stage_of(smooth, "evaluate").last_end);
  EXPECT_EQ(stage_of(smooth, "finetune").last_end + 10.0, smooth.makespan_seconds);
  EXPECT_EQ(stage_of(smooth, "finetune").busy_worker_seconds, 3 * 20'000.0);
  input.workers[0].mean_seconds_between_failures = 10'000.0;
  const Simulation rough = simulate(input);
  ASSERT_TRUE(rough.finished) << rough.problem;
  const SimulatedStage finetune = stage_of(rough, "finetune");
  EXPECT_GT(rough.failures, 2);
  EXPECT_NEAR(finetune.busy_worker_seconds, 3 * 20'000.0, 1e-3);
  EXPECT_LE(finetune.lost_worker_seconds, 3 * rough.failures * input.checkpoint_seconds);
  EXPECT_GT(rough.makespan_seconds, smooth.makespan_seconds);
  input.finetune_nodes = 5;
  EXPECT_EQ(simulate(input).problem, "finetune is given up: it wants 5 nodes, the cluster has 4");
}

TEST(Simulation, ATaskThatNeverOutlivesANodeIsGivenUp) {
  SimulationInput input = input_of(1, 1, 2);
  input.geometry.evaluates = {Subject::kTeacher};
  input.workers[0].mean_seconds_between_failures = 1'000.0;
  input.task_seconds = [](const TaskId& id, std::size_t) {
    return id.stage == Stage::kEvaluate ? 1e6 : 1.0;
  };
  const Simulation simulation = simulate(input);
  EXPECT_FALSE(simulation.finished);
  EXPECT_EQ(simulation.problem.find("evaluate/teacher is given up: 6 leases in a row ran out"), 0U)
      << simulation.problem;
  EXPECT_EQ(stage_of(simulation, "transfer").tasks, 1);
}

TEST(Simulation, ARunThatFailuresKeepFromItsEndIsEnded) {
  SimulationInput input = input_of(1, 1, 400);
  input.geometry.finetunes = true;
  input.finetune_nodes = 400;  // which are never all there
  input.workers[0].mean_seconds_between_failures = 500.0;
  const Simulation simulation = simulate(input);
  EXPECT_FALSE(simulation.finished);
  EXPECT_EQ(simulation.problem, "finetune is not done after 100000 failures of nodes");
}

TEST(Simulation, ALargeRunOnManyFailingWorkersIsSimulatedToItsEnd) {
  SimulationInput input = input_of(126, 320, 16);
  input.geometry.shards_per_capture = 4;
  input.keep = {KeepBoundaries::Kind::kNone, 1};
  input.workers[0].workers_per_node = 8;
  input.workers[0].mean_seconds_between_failures = 20'000.0;
  const Simulation simulation = simulate(input);
  EXPECT_TRUE(simulation.finished) << simulation.problem;
  EXPECT_EQ(stage_of(simulation, "capture").tasks, 125 * 80);
  EXPECT_GT(simulation.failures, 0);
}

TEST(Simulation, InputThatMakesNoSenseIsRefusedByItsName) {
  const auto refusal = [](const std::function<void(SimulationInput&)>& change) {
    SimulationInput input = input_of(2, 2, 2);
    change(input);
    return tests::refusal([&input] { static_cast<void>(simulate(input)); },
                          storage::ErrorKind::kUsage);
  };
  EXPECT_EQ(refusal([](SimulationInput& input) { input.workers.clear(); }),
            "simulation: there are no workers; name at least one kind");
  EXPECT_EQ(refusal([](SimulationInput& input) { input.workers[0].nodes = 0; }),
            "simulation: workers[0].nodes is 0, expected 1 or more");
  EXPECT_EQ(refusal([](SimulationInput& input) { input.geometry.num_shards = 0; }),
            "simulation: geometry.num_shards is 0, expected 1 or more");
  EXPECT_EQ(refusal([](SimulationInput& input) { input.lease_seconds = -1.0; }),
            "simulation: lease_seconds is -1.000000 s, expected a finite time of 0 or more");
  EXPECT_EQ(refusal([](SimulationInput& input) {
              input.task_seconds = [](const TaskId&, std::size_t) { return -2.0; };
            }),
            "simulation: task_seconds of capture/b0000/p00 is -2.000000 s, expected a finite time "
            "of 0 or more");
}

}  // namespace
}  // namespace hedgerow::coordinator
