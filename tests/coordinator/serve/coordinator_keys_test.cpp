// Whole runs whose connections are encrypted: who takes part, who is refused and in which words,
// and keys that change meanwhile.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <latch>

#include "coordinator/net/key_maker.hpp"
#include "coordinator_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

class RunWithKeys : public CoordinatorRun {
 protected:
  // Why a worker that asks for a task there is refused.
  std::string refusal_of(const std::string& endpoint,
                         const std::string& key_pair = "worker") const {
    try {
      const auto task = connect("refused", endpoint, key_pair)->next_task(-1);
      return task ? "it got a task" : "it was told to stop";
    } catch (const storage::Error& error) {
      EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
      return error.what();
    }
  }
};

TEST_F(RunWithKeys, ARunWithKeysOnAllAddressesIsFinishedByItsWorkersAlone) {
  const KeyReport keys = make_keys(layout_, {.workers = {"worker", "gpu", "stranger"}});
  storage::write_atomically(
      wire::allowed_keys_file(layout_),
      keys.public_keys.at("worker") + "\n" + keys.public_keys.at("gpu") + "\n");
  recipe_.workers.bind = "*";
  recipe_.workers.advertise = "127.0.0.1";
  std::array<int, 2> done{};
  std::string stranger, plain;
  std::latch both_are_refused{1};
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < done.size(); ++i) {
    workers.emplace_back([this, i, &done, &stranger, &plain, &both_are_refused] {
      const std::string endpoint = endpoint_of_next_coordinator();
      if (i == 0) {  // before the run can end
        stranger = refusal_of(endpoint, "stranger");
        worker::ClientOptions elsewhere{.layout = storage::RunLayout(directory_ / "no-keys-here"),
                                        .endpoint = endpoint,
                                        .hello = {}};
        try {
          static_cast<void>(worker::CoordinatorClient(std::move(elsewhere)).next_task(-1));
        } catch (const storage::Error& error) {
          plain = error.what();
        }
        both_are_refused.count_down();
      }
      const auto client = connect("w" + std::to_string(i), endpoint, i == 0 ? "worker" : "gpu");
      // Else the second one may finish the run before the first one comes.
      if (i == 1) both_are_refused.wait();
      done[i] = serve(*client);
    });
  }
  const RunOutcome outcome = coordinate();
  workers.clear();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk) << outcome.summary;
  EXPECT_EQ(done[0] + done[1], 4 + 3 + 2);
  EXPECT_THAT(stranger,
              HasSubstr("does not let in the public key " + keys.public_keys.at("stranger")));
  EXPECT_THAT(plain, HasSubstr("lets in holders of keys alone, and this worker sees none"));
  const auto file = wire::read_coordinator_file(layout_);
  EXPECT_EQ(file->public_key, keys.public_keys.at("coordinator"));
  EXPECT_THAT(outcome.status.warnings,
              Contains(HasSubstr("refused a worker at 127.0.0.1: its public key " +
                                 keys.public_keys.at("stranger"))));
  for (const char* pair : {"coordinator", "worker", "gpu", "stranger"}) {
    const std::string secret = wire::read_secret_file(wire::secret_key_file(layout_, pair));
    for (const auto& entry : std::filesystem::recursive_directory_iterator(layout_.root())) {
      if (!entry.is_regular_file() || entry.path().parent_path() == layout_.keys_directory())
        continue;
      EXPECT_THAT(storage::read_text(entry.path()), Not(HasSubstr(secret))) << entry.path();
    }
  }
}

// The old key is taken off the list while its holder works: it takes up the new one and keeps its
// lease; who has the old one alone is out.
TEST_F(RunWithKeys, KeysAreMadeAnewUnderARunThatGoesOn) {
  static_cast<void>(make_keys(layout_, {.workers = {"worker"}}));
  const tests::TemporaryDirectory elsewhere;
  std::filesystem::copy(layout_.keys_directory(), elsewhere / "keys");
  ASSERT_EQ(::chmod((elsewhere / "keys").c_str(), 0700), 0);
  std::string leaked;
  std::jthread worker([&] {
    const std::string endpoint = endpoint_of_next_coordinator();
    const auto client = connect("w", endpoint);
    bool rotated = false;
    while (const auto task = client->next_task(-1)) {
      if (!std::exchange(rotated, true)) {
        static_cast<void>(
            make_keys(layout_, {.workers = {"worker"}, .of_coordinator = false, .rotate = true}));
        reload_requests_ = 1;
        while (num_records("noted") == 0) std::this_thread::yield();
        worker::ClientOptions thief{
            .layout = storage::RunLayout(elsewhere.path()), .endpoint = endpoint, .hello = {}};
        thief.hello.worker = {"thief", 1};
        try {
          static_cast<void>(worker::CoordinatorClient(std::move(thief)).next_task(-1));
        } catch (const storage::Error& error) {
          leaked = error.what();
        }
      }
      execute(*client, *task);
    }
  });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  worker.join();
  EXPECT_THAT(leaked, HasSubstr("does not let in the public key"));
  EXPECT_EQ(num_records("revoked") + num_records("failed"), 0) << "the holder lost nothing";
  const State state = replayed();
  for (const auto& [id, task] : state.tasks) EXPECT_LE(task.attempts, 1) << to_string(id);
}

TEST_F(RunWithKeys, AListThatCannotBeReadLeavesTheOldOneInForce) {
  static_cast<void>(make_keys(layout_, {.workers = {"worker"}}));
  std::jthread worker([&] {
    const auto client = connect("w", endpoint_of_next_coordinator());
    bool broken = false;
    while (const auto task = client->next_task(-1)) {
      if (!std::exchange(broken, true)) {
        storage::write_atomically(wire::allowed_keys_file(layout_), "no key\n");
        reload_requests_ = 1;
      }
      execute(*client, *task);
    }
  });
  const RunOutcome outcome = coordinate();
  EXPECT_EQ(outcome.exit_code, storage::ExitCode::kOk);
  EXPECT_THAT(outcome.status.warnings,
              Contains(HasSubstr("allowed:1: its first word is no public key")));
}

TEST_F(RunWithKeys, AWorkerWithKeysRefusesACoordinatorWithoutAndWithOtherKeys) {
  std::atomic<int> stop{0};
  std::string without, other;
  std::jthread worker([&] {
    const std::string endpoint = endpoint_of_next_coordinator();
    static_cast<void>(
        make_keys(layout_, {.workers = {"worker"}}));  // too late for this coordinator
    without = refusal_of(endpoint);
    stop = 1;
  });
  EXPECT_EQ(coordinate(&stop).exit_code, storage::ExitCode::kInterrupted);
  worker.join();
  EXPECT_THAT(without, HasSubstr("does not encrypt its connections, but this worker has keys"));
  const std::uint64_t term = wire::read_coordinator_file(layout_)->term;
  stop = 0;
  std::jthread next([&] {
    const std::string endpoint = endpoint_of_next_coordinator(term);
    static_cast<void>(make_keys(layout_, {.workers = {}, .rotate = true}));
    other = refusal_of(endpoint);
    stop = 1;
  });
  EXPECT_EQ(coordinate(&stop).exit_code, storage::ExitCode::kInterrupted);
  next.join();
  EXPECT_THAT(
      other,
      HasSubstr("has not the key that " + wire::public_key_file(layout_, "coordinator").string()));
}

}  // namespace
}  // namespace hedgerow::coordinator
