// A finetune stage whose ranks the coordinator does not start itself: an MPIJob of Kubernetes, or
// another job's mpirun.
#include "coordinator_fixture.hpp"
#include "storage/files/file.hpp"
#include "tests/support/forked_process.hpp"
#include "worker/client/stage_request.hpp"

namespace hedgerow::coordinator {
namespace {

class StageElsewhere : public CoordinatorRun {
 protected:
  StageElsewhere() {
    geometry_.finetunes = true;
    geometry_.evaluates.clear();  // they come after it, and no worker comes back here
    finetune_elsewhere_ = true;
  }

  // Rank 0 of a finetune stage that somebody else started, as far as the coordinator sees it.
  std::unique_ptr<worker::CoordinatorClient> launch_ranks() {
    const std::atomic<bool> never{false};
    const auto start = worker::ask_for_stage(
        layout_, 2, never, {.limit = seconds(20), .look_every = milliseconds(1)});
    mesh_told_ = start->mesh;
    worker::ClientOptions options{.layout = layout_, .endpoint = start->endpoint, .hello = {}};
    options.hello.worker = {"mpi", start->fencing_token};
    options.hello.version = "1";
    options.holds = start->fencing_token;
    options.heartbeat = milliseconds(50);
    options.reply_timeout = milliseconds(200);
    options.orphan_timeout = seconds(30);
    return std::make_unique<worker::CoordinatorClient>(std::move(options));
  }

  // What people see, and what tells them to start the ranks.
  void await_that_the_stage_is_said_to_wait(const std::string& why = "waits for its ranks") const {
    const auto deadline = std::chrono::steady_clock::now() + seconds(20);
    while (std::chrono::steady_clock::now() < deadline) {
      const RunStatus status = read_status(layout_);
      const auto* task = status.task("finetune");
      if (task != nullptr && task->reason.find(why) != std::string::npos &&
          !status.warnings.empty()) {
        EXPECT_EQ(find_opening(layout_).kind, Opening::Kind::kBusy) << "workers would come and go";
        return;
      }
      std::this_thread::yield();
    }
    throw std::runtime_error("nobody said that the stage waits for its ranks");
  }

  void finish_finetune(worker::CoordinatorClient& client, std::uint64_t token) const {
    const std::string adapter = storage::RunLayout::adapter_directory(token);
    client.done({write_attempt(token, adapter + "/adapter_model.safetensors", "x"),
                 write_attempt(token, adapter + "/adapter_config.json", "{}")},
                nlohmann::json::object());
  }

  std::string mesh_told_;
};

// A launch that fails is followed by another one, which gets a token of its own.
TEST_F(StageElsewhere, ItsRanksAskForItAndAskAgainAfterAFailure) {
  std::atomic<int> over{0}, sent_away{0};
  std::jthread worker([&] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    static_cast<void>(serve(*client));
    ++(client->run_is_over() ? over : sent_away);
  });
  std::vector<std::uint64_t> tokens;
  std::jthread ranks([&] {
    for (const bool fails : {true, false}) {
      await_that_the_stage_is_said_to_wait();
      const auto client = launch_ranks();
      const auto task = client->join();
      if (!task) return;
      tokens.push_back(task->fencing_token);
      if (fails) client->failed(storage::ErrorKind::kUnavailable, "a rank is lost", {});
      if (!fails) finish_finetune(*client, task->fencing_token);
    }
  });
  const RunOutcome outcome = coordinate();
  worker.join();
  ranks.join();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  ASSERT_EQ(tokens.size(), 2U);
  EXPECT_LT(tokens[0], tokens[1]);
  EXPECT_EQ(replayed().task(TaskId::finetune()).attempts, 2);
  EXPECT_EQ(sent_away + over, 1);
  EXPECT_EQ(over, 0) << "the stage was to come, and an evaluation may come after it";
  EXPECT_FALSE(wire::read_stage_request(layout_)) << "was left lying";
  EXPECT_FALSE(wire::read_stage_start(layout_)) << "was left lying";
}

TEST_F(StageElsewhere, ItOutlivesItsCoordinatorAndKeepsItsToken) {
  tests::ForkedProcess first([&] { static_cast<void>(coordinate()); });
  static_cast<void>(serve(*connect("w", endpoint_of_next_coordinator())));
  const auto client = launch_ranks();
  const auto task = client->join();
  ASSERT_TRUE(task);
  ASSERT_TRUE(WIFSIGNALED(first.kill()));
  std::jthread ranks([&] { finish_finetune(*client, task->fencing_token); });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  EXPECT_EQ(replayed().task(TaskId::finetune()).token, task->fencing_token);
  EXPECT_EQ(replayed().task(TaskId::finetune()).attempts, 1);
  EXPECT_EQ(num_records("revoked"), 0);
}

// Its rank 0 was killed before it could take its question back.
TEST_F(StageElsewhere, ItIsNotGivenToALaunchThatIsDead) {
  wire::write_stage_request(layout_,
                            {.launch = "dead", .host = "h", .ranks = 2, .heartbeat_count = 7});
  std::jthread worker(
      [&] { static_cast<void>(serve(*connect("w", endpoint_of_next_coordinator()))); });
  std::jthread ranks([&] {
    await_that_the_stage_is_said_to_wait();
    const auto client = launch_ranks();
    if (const auto task = client->join()) finish_finetune(*client, task->fencing_token);
  });
  const RunOutcome outcome = coordinate();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  EXPECT_EQ(replayed().task(TaskId::finetune()).attempts, 1);
}

TEST_F(StageElsewhere, RanksThatMakeNoMeshAreRefusedAndOthersAreToldTheirs) {
  launcher_.mesh_of_ranks = [](int ranks) -> std::string {
    if (ranks != 2) throw storage::Error(storage::ErrorKind::kUsage, "the mesh has 2 ranks");
    return "1x2";
  };
  std::jthread worker(
      [&] { static_cast<void>(serve(*connect("w", endpoint_of_next_coordinator()))); });
  std::jthread ranks([&] {
    std::atomic<bool> stops{false};
    std::jthread wrong([&] {
      EXPECT_EQ(worker::ask_for_stage(
                    layout_, 3, stops, {.limit = seconds(20), .look_every = milliseconds(1)}),
                std::nullopt);
    });
    await_that_the_stage_is_said_to_wait("the mesh has 2 ranks");
    stops = true;
    wrong.join();
    const auto client = launch_ranks();
    if (const auto task = client->join()) finish_finetune(*client, task->fencing_token);
  });
  const RunOutcome outcome = coordinate();
  ranks.join();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  EXPECT_EQ(mesh_told_, "1x2");
}

TEST_F(StageElsewhere, AnAnswerOfAnOlderBuildLeavesTheMeshToTheRanks) {
  storage::write_atomically(layout_.stage_start_file(),
                            R"({"format": "stage/1", "launch": "l", "fencing_token": 7,
                                "student": "student/t1", "endpoint": "tcp://h:1", "threads": 2})");
  ASSERT_TRUE(wire::read_stage_start(layout_));
  EXPECT_EQ(wire::read_stage_start(layout_)->mesh, "auto");
}

TEST_F(StageElsewhere, RanksThatNobodyAnswersTakeTheirQuestionBack) {
  const std::atomic<bool> never{false}, told{true};
  const worker::StageTimeout none{.limit = milliseconds(0), .look_every = milliseconds(1)};
  EXPECT_THROW(static_cast<void>(worker::ask_for_stage(layout_, 2, never, none)), storage::Error);
  EXPECT_EQ(worker::ask_for_stage(layout_, 2, told, none), std::nullopt);
  EXPECT_FALSE(wire::read_stage_request(layout_));
  // The answer to an earlier launch, which is gone.
  wire::write_stage_start(layout_, {.launch = "another", .fencing_token = 7});
  EXPECT_THROW(static_cast<void>(worker::ask_for_stage(layout_, 2, never, none)), storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
