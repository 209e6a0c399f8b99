// Somebody who may write into the run directory, or holds a key, tries to make the coordinator
// touch files elsewhere, or to bring it down by what it reads.
#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/dispatch/dispatcher.hpp"
#include "coordinator/host/process.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator_fixture.hpp"
#include "tests/support/fake_clock.hpp"
#include "worker/client/task_inputs.hpp"

namespace hedgerow::coordinator {
namespace {

namespace fs = std::filesystem;
using storage::RunLayout;
using ::testing::HasSubstr;

constexpr std::uint64_t kToken = 41;

DispatcherConfig version_one() {
  DispatcherConfig config;
  config.version = "1";
  return config;
}

std::string text_of(const fs::path& path) { return storage::read_text(path); }

void expect_refused(const std::function<void()>& action) {
  try {
    action();
    ADD_FAILURE() << "not refused";
  } catch (const storage::Error& error) {
    EXPECT_EQ(error.kind(), storage::ErrorKind::kUsage) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("symbolic link"));
  }
}

class Containment : public CoordinatorRun {
 protected:
  Containment() {
    fs::create_directories(outside_.path());
    std::ofstream(outside_ / "precious") << "precious";
  }
  void link(const std::string& name, const fs::path& target) const {
    fs::create_directories((layout_.root() / name).parent_path());
    fs::remove_all(layout_.root() / name);
    fs::create_symlink(target, layout_.root() / name);
  }
  [[nodiscard]] State started() const {
    State state;
    static_cast<void>(coordinator::apply(state, RunStarted{geometry_, "test"}));
    return state;
  }
  // Nothing was written, moved or deleted there.
  void expect_untouched() const {
    EXPECT_EQ(text_of(outside_ / "precious"), "precious");
    EXPECT_EQ(std::distance(fs::directory_iterator(outside_.path()), fs::directory_iterator()), 1);
  }

  tests::TemporaryDirectory outside_;
};

TEST_F(Containment, AFileIsNeverMovedIntoTheRunFromElsewhere) {
  const storage::FileRecord record =
      write_attempt(kToken, RunLayout::block_artifact(0, kToken), "artifact");
  fs::rename(layout_.root() / RunLayout::attempt_directory(kToken) / "artifact.t41.safetensors",
             outside_ / "artifact.t41.safetensors");
  link(RunLayout::attempt_directory(kToken), outside_.path());
  expect_refused([&] { commit_file(layout_, kToken, record); });
  EXPECT_TRUE(fs::exists(outside_ / "artifact.t41.safetensors"));
  EXPECT_FALSE(fs::exists(layout_.root() / record.name));
}

TEST_F(Containment, AFileIsNeverMovedOutOfTheRun) {
  const storage::FileRecord record =
      write_attempt(kToken, RunLayout::block_artifact(0, kToken), "artifact");
  link("blocks", outside_.path());
  expect_refused([&] { commit_file(layout_, kToken, record); });
  expect_untouched();
  fs::remove(layout_.root() / "blocks");
  link("blocks/b0000", outside_.path());
  expect_refused([&] { commit_file(layout_, kToken, record); });
  expect_untouched();
}

TEST_F(Containment, DeletingBoundariesStopsAtALink) {
  State state = started();
  storage::FileRecord& file = state.shards[1][0].file;
  file.name = "hidden/b0001/precious";
  state.shards[1][0].state = ShardState::kDropped;
  link("hidden/b0001", outside_.path());
  expect_refused([&] { delete_dropped_shards(layout_, state); });
  expect_untouched();
}

TEST_F(Containment, LogsAreNotWrittenThroughALink) {
  link("logs/worker-x.log", outside_ / "precious");
  expect_refused([&] {
    static_cast<void>(
        ChildProcess::start({"echo", "overwritten"}, layout_.logs() / "worker-x.log"));
  });
  expect_untouched();
}

TEST_F(Containment, TheStatusReplacesALinkInsteadOfWritingThroughIt) {
  link("logs/status.json.new", outside_ / "precious");
  link("logs/status.json", outside_ / "precious");
  std::jthread worker([this] { serve(*connect("w", endpoint_of_next_coordinator())); });
  EXPECT_EQ(coordinate().exit_code, storage::ExitCode::kOk);
  expect_untouched();
  EXPECT_EQ(read_status(layout_).state, "done");
}

// One frame of a worker that is allowed to talk must not end the run.
TEST_F(Containment, NamesThatNoFileCanHaveAreTheWorkersFailureAndNotTheCoordinators) {
  const FakeClock clock;
  Dispatcher dispatcher(layout_, {}, open_journal(), clock, version_one());
  dispatcher.record(RunStarted{geometry_, "test"});
  const auto say = [&](const wire::Message& message) {
    dispatcher.receive("peer", wire::encode(message));
    const auto replies = dispatcher.flush();
    return replies.empty() ? wire::Message(wire::Idle{-1}) : replies.front().message;
  };
  wire::Hello hello;
  hello.worker = {"w", 1};
  hello.version = "1";
  say(hello);
  int num_grants = 0;
  for (const std::string& name : {std::string(5000, 'a'),
                                  std::string("../../precious"),
                                  std::string("x\0y", 3),
                                  "loop/" + std::string(200, 'x')}) {
    const wire::Message granted = say(wire::Request{{"w", 1}, -1});
    if (wire::type_of(granted) != "grant") break;  // given up after some failures
    ++num_grants;
    const std::uint64_t token = std::get<wire::Grant>(granted).task.fencing_token;
    link(RunLayout::attempt_directory(token) + "/loop", "loop");
    const storage::FileRecord file{
        RunLayout::attempt_directory(token) + "/" + name, 8, storage::Hash128{}};
    EXPECT_NO_THROW(say(wire::Checkpointed{{"w", 1}, token, file, 1})) << name.substr(0, 20);
    EXPECT_NO_THROW(say(wire::ShardReady{{"w", 1}, token, 0, file}));
    EXPECT_NO_THROW(say(wire::Done{{"w", 1}, token, {file}, nlohmann::json::object()}));
    EXPECT_NO_THROW(say(wire::Failed{
        {"w", 1}, token, storage::ErrorKind::kCorrupt, "damaged", {file.name, "/etc/passwd"}}));
    say(wire::Released{{"w", 1}, token, "next"});
  }
  EXPECT_EQ(num_grants, 4);
  expect_untouched();
  EXPECT_EQ(num_records("checkpointed") + num_records("shard_committed") + num_records("lost"), 0);
}

TEST_F(Containment, InputListsOfAGrantAreNotWrittenElsewhere) {
  const FakeClock clock;
  geometry_.num_shards = 500;  // a transfer's inputs go through a file
  geometry_.shards_per_capture = 500;
  State state;
  static_cast<void>(coordinator::apply(state, RunStarted{geometry_, "test"}));
  // The first transfer reads the embeddings; the second block's has 500 inputs.
  const TaskId capture = TaskId::capture(0, 0);
  static_cast<void>(coordinator::apply(state, Granted{capture, 1, "w", 1, "cpu"}));
  for (int shard = 0; shard < 500; ++shard) {
    static_cast<void>(coordinator::apply(
        state,
        ShardCommitted{1, shard, {RunLayout::hidden_shard(1, shard, 1), 8, storage::Hash128{}}}));
  }
  static_cast<void>(coordinator::apply(state, TaskDone{1, {}, nlohmann::json::object()}));
  link("attempts", outside_.path());
  Dispatcher dispatcher(layout_, std::move(state), open_journal(), clock, version_one());
  wire::Hello hello;
  hello.worker = {"w", 1};
  hello.version = "1";
  dispatcher.receive("peer", wire::encode(hello));
  expect_refused([&] {
    for (int i = 0; i < 20; ++i) {
      dispatcher.receive("peer", wire::encode(wire::Request{{"w", 1}, -1}));
      for (const Outgoing& outgoing : dispatcher.flush()) {
        const auto* grant = std::get_if<wire::Grant>(&outgoing.message);
        if (grant == nullptr) continue;
        dispatcher.receive("peer",
                           wire::encode(wire::Failed{{"w", 1},
                                                     grant->task.fencing_token,
                                                     storage::ErrorKind::kUsage,
                                                     "not this one",
                                                     {}}));
      }
    }
  });
  expect_untouched();
}

void make_larger_than(const fs::path& path, std::uintmax_t bytes) {
  std::ofstream(path).flush();
  fs::resize_file(path, bytes + 1);  // a hole: no disk, no time
}

TEST_F(Containment, FilesOverTheirCapAreNotReadIntoMemory) {
  make_larger_than(layout_.coordinator_file(), 1U << 20);
  EXPECT_EQ(wire::read_coordinator_file(layout_), std::nullopt);
  make_larger_than(layout_.logs() / "status.json", 256U << 20);
  EXPECT_EQ(read_status(layout_).state, "new") << "the journal tells the rest";
  make_larger_than(layout_.recipe(), 1U << 20);
  try {
    static_cast<void>(storage::Recipe::load(layout_.recipe()));
    FAIL() << "read";
  } catch (const storage::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("1048577 bytes, expected at most 1048576"));
  }
  const std::string list = RunLayout::attempt_directory(kToken) + "/inputs.json";
  fs::create_directories((layout_.root() / list).parent_path());
  make_larger_than(layout_.root() / list, 256U << 20);
  wire::Task task;
  task.inputs_file = {list, (256U << 20) + 1, storage::hash_file(layout_.root() / list)};
  EXPECT_THROW(static_cast<void>(worker::with_inputs(layout_, task)), storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
