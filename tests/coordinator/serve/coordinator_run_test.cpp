// A coordinator at work, from its workers' side of the socket (coordinator_fixture.hpp).
#include <gmock/gmock.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <latch>

#include "coordinator_fixture.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/forked_process.hpp"

namespace hedgerow::coordinator {
namespace {

TEST_F(CoordinatorRun, TwoWorkersFinishARunOverRealSockets) {
  std::array<int, 2> done{};
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < done.size(); ++i) {
    workers.emplace_back([this, i, &done] {
      const auto client = connect("w" + std::to_string(i), endpoint_of_next_coordinator());
      done[i] = serve(*client);
    });
  }
  const RunOutcome outcome = coordinate();
  workers.clear();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  EXPECT_EQ(done[0] + done[1], 4 + 3 + 2) << "captures, transfers, evaluations";
  const State state = replayed();
  EXPECT_EQ(phase_of(state), RunPhase::kDone);
  for (const auto& file : state.task(TaskId::assemble()).files) {
    EXPECT_TRUE(std::filesystem::exists(layout_.resolve(file.name))) << file.name;
  }
  const RunStatus status = read_status(layout_);
  EXPECT_EQ(status.state, "done");
  EXPECT_EQ(status.task("evaluate/transfer")->result["perplexity"], 12.5);
  EXPECT_EQ(status.stages.front().done, 4);
}

TEST_F(CoordinatorRun, TheFinetuneStageCanBeLeftToAnotherCommand) {
  geometry_.finetunes = true;
  geometry_.evaluates.push_back(Subject::kLora);
  stops_before_finetune_ = true;
  std::jthread worker([this] { serve(*connect("w", endpoint_of_next_coordinator())); });
  const RunOutcome outcome = coordinate();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  EXPECT_EQ(outcome.summary, "all but the finetune stage is done");
  EXPECT_EQ(num_records("granted"), 4 + 3 + 1) << "captures, transfers, assemble";
  const RunStatus status = read_status(layout_);
  EXPECT_EQ(status.state, "stopped");
  EXPECT_EQ(status.task("finetune")->state, "ready");
}

TEST_F(CoordinatorRun, UnkeptBoundariesAreGoneAtTheEnd) {
  recipe_.plan.keep_boundaries = "none";
  std::jthread worker([this] { serve(*connect("w", endpoint_of_next_coordinator())); });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  int files = 0;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(layout_.root() / "hidden")) {
    files += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(files, 0);
}

TEST_F(CoordinatorRun, ADamagedArtifactIsFoundByTheAssemblerAndMadeAgain) {
  std::jthread worker([this] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    bool broken = false;
    while (const auto task = client->next_task(-1)) {
      if (task->kind == wire::TaskKind::kTransfer && task->block == 1 && !broken) {
        broken = true;
        client->done({write_artifact(1,
                                     task->fencing_token,
                                     {.except = "model.layers.2.self_attn.window_factors",
                                      .surplus = "",
                                      .reshaped = ""})},
                     nlohmann::json::object());
      } else {
        execute(*client, *task);
      }
    }
  });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  EXPECT_EQ(num_records("lost"), 1);
  EXPECT_EQ(replayed().task(TaskId::transfer(1)).attempts, 2);
}

TEST_F(CoordinatorRun, APoisonedTaskIsQuarantinedAndTheRestFinishes) {
  std::vector<std::jthread> workers;
  for (int i = 0; i < 2; ++i) {
    workers.emplace_back([this, i] {
      const auto client = connect("w" + std::to_string(i), endpoint_of_next_coordinator());
      while (const auto task = client->next_task(-1)) {
        if (task->kind == wire::TaskKind::kTransfer && task->block == 2) {
          client->failed(storage::ErrorKind::kInternal, "loss of layer 4 is not finite", {});
        } else {
          execute(*client, *task);
        }
      }
    });
  }
  const RunOutcome outcome = coordinate();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kPartial);
  // Three or, while all of them are one worker's, more.
  EXPECT_THAT(outcome.summary,
              ::testing::ContainsRegex(
                  "transfer/b0002 is quarantined: [0-9]+ failures in a row on 2 workers"));
  EXPECT_EQ(replayed().task(TaskId::transfer(1)).state, TaskState::kDone);
}

TEST_F(CoordinatorRun, AStopRequestTellsTheWorkersAndTheNextTermGoesOn) {
  std::atomic<int> stop{0};
  std::latch transferring(1);
  std::jthread worker([&] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    while (const auto task = client->next_task(-1)) {
      if (task->kind != wire::TaskKind::kTransfer) {
        execute(*client, *task);
        continue;
      }
      transferring.count_down();
      while (!client->should_stop()) std::this_thread::yield();
      client->released("stop");
      return;
    }
  });
  std::jthread stopper([&] {
    transferring.wait();
    stop = 1;
  });
  RunOutcome outcome = coordinate(&stop);
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kInterrupted);
  EXPECT_TRUE(saw_stopping_) << "whoever asked is told before the workers have left";
  EXPECT_FALSE(outcome.status.is_stopping);
  worker.join();
  const std::uint64_t term = wire::read_coordinator_file(layout_)->term;
  std::jthread next([&] { serve(*connect("w", endpoint_of_next_coordinator(term))); });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  EXPECT_EQ(num_records("shard_committed"), 4) << "nothing was captured twice";
}

// Two pieces of a capture: of one the disk is full, the other one is told to stop.
TEST_F(CoordinatorRun, AFullDiskEndsTheRunOnceNobodyHoldsATaskAndSaysOnceWhatToDo) {
  room_for_retry_ = ~0ULL;
  std::latch both_work(2);
  std::vector<std::jthread> workers;
  for (int i = 0; i < 2; ++i) {
    workers.emplace_back([&, i] {
      const auto client = connect("w" + std::to_string(i), endpoint_of_next_coordinator());
      const auto task = client->next_task(-1);
      both_work.arrive_and_wait();
      if (i == 0) {
        const storage::Error full = storage::system_error("write", "a shard", ENOSPC);
        client->failed(full.kind(), full.what(), {});
        return;
      }
      while (!client->should_stop()) std::this_thread::yield();
      client->released(client->stop_reason());
    });
  }
  try {
    static_cast<void>(coordinate());
    ADD_FAILURE() << "it went on";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kExhausted);
    const std::string text = error.what();
    EXPECT_THAT(text,
                ::testing::ContainsRegex(
                    "^write a shard: No space left on device; [0-9]+ MiB are free in "));
    EXPECT_THAT(text, ::testing::EndsWith(std::string(storage::kRoomAdvice)));
    EXPECT_EQ(text.find("run the same"), text.rfind("run the same")) << text;
  }
  workers.clear();
  EXPECT_TRUE(saw_stopping_);
  const State state = replayed();
  EXPECT_TRUE(state.grants.empty());
  for (const auto& [id, task] : state.tasks)
    EXPECT_THAT(task.reason, ::testing::Not(::testing::HasSubstr("free space"))) << to_string(id);
  EXPECT_EQ(num_records("released"), 1);
}

// What it holds would be shown as running, and its process as one that somebody left behind.
TEST_F(CoordinatorRun, AnErrorWaitsForTheWorkersOfTheRun) {
  launcher_.worker_binary = directory_ / "worker";
  launcher_.local_workers = 1;
  std::filesystem::create_directories(layout_.logs());
  std::ofstream(launcher_.worker_binary) << "#!/bin/sh\ncd " << directory_.path().string()
                                         << "\ntrap 'sleep 0.3; touch ended; exit 4' TERM\ntouch "
                                            "begun\nwhile :; do sleep 0.02; done\n";
  std::filesystem::permissions(launcher_.worker_binary, std::filesystem::perms::owner_all);
  news_ = [&]() -> AllowedKeysNews {
    if (std::filesystem::exists(directory_ / "begun"))
      throw storage::system_error("write", "the journal", ENOSPC);
    return {};
  };
  EXPECT_THROW(static_cast<void>(coordinate()), storage::Error);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "ended"));
  EXPECT_TRUE(read_status(layout_).warnings.empty());
}

// The coordinator is a child process and is killed while a worker holds a task. The worker lives
// on, finds the next coordinator, keeps its lease and finishes the same attempt.
TEST_F(CoordinatorRun, ALiveWorkerIsAdoptedByTheNextCoordinatorAfterAKill) {
  tests::ForkedProcess first([&] { static_cast<void>(coordinate()); });
  const std::string endpoint = endpoint_of_next_coordinator();
  std::atomic<std::uint64_t> held{0};
  std::atomic<bool> go_on{false};
  std::jthread worker([&] {
    const auto client = connect("w", endpoint);
    while (const auto task = client->next_task(-1)) {
      if (task->kind == wire::TaskKind::kTransfer && held == 0) {
        held = task->fencing_token;
        held.notify_all();
        go_on.wait(false);
      }
      execute(*client, *task);
    }
  });
  held.wait(0);
  ASSERT_TRUE(WIFSIGNALED(first.kill()));
  const int granted_before = num_records("granted");
  go_on = true;
  go_on.notify_all();
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  const State state = replayed();
  EXPECT_EQ(state.task(TaskId::transfer(0)).token, held)
      << "the attempt was kept, not started again";
  EXPECT_EQ(state.task(TaskId::transfer(0)).attempts, 1);
  EXPECT_EQ(num_records("revoked"), 0);
  EXPECT_GT(num_records("granted"), granted_before)
      << "the rest was granted by the second coordinator";
}

TEST_F(CoordinatorRun, ASecondCoordinatorOnTheSameRunIsRefusedByName) {
  storage::write_atomically(layout_.recipe(), recipe_.to_toml());
  const tests::ForkedProcess other([] { ::pause(); });
  wire::CoordinatorFile file{.host = wire::this_host(),
                             .process = *wire::process_with(other.pid()),
                             .term = 3,
                             .endpoint = "tcp://127.0.0.1:1",
                             .started_at = "2026-11-21T12:00:00.000Z",
                             .heartbeat_count = 0,
                             .children = {}};
  wire::write_coordinator_file(layout_, file);
  Quiet observer(saw_stopping_);
  RunOptions options;
  options.run_directory = layout_.root();
  try {
    static_cast<void>(run(options, observer));
    ADD_FAILURE() << "ran beside another coordinator";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("pid " + std::to_string(other.pid())),
              std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("term 3"), std::string::npos) << error.what();
  }
}

TEST_F(CoordinatorRun, AnAddressThatOthersReachIsRefusedWithoutKeys) {
  recipe_.workers.bind = "0.0.0.0";
  EXPECT_THROW(static_cast<void>(coordinate()), storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
