// What becomes of a task that finds its input gone: message by message, with a real journal.
#include <filesystem>

#include "coordinator/dispatch/dispatcher.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::ErrorKind;

const wire::WorkerId kWorker{"w1", 0};

class LostInput : public RunFixture {
 protected:
  LostInput() {
    config_.version = "1";
    config_.leases.lease = std::chrono::seconds(8);
    dispatcher_ = std::make_unique<Dispatcher>(layout_, State{}, open_journal(), clock_, config_);
    dispatcher_->record(RunStarted{geometry_, "test"});
    wire::Hello hello;
    hello.worker = kWorker;
    hello.version = "1";
    welcome_ = say(hello);
  }

  wire::Message say(const wire::Message& message) {
    dispatcher_->receive("peer", wire::encode(message));
    const std::vector<Outgoing> replies = dispatcher_->flush();
    return replies.empty() ? wire::Message(wire::Idle{-1}) : replies.back().message;
  }
  const TaskRecord& task() const { return dispatcher_->state().task(TaskId::transfer(0)); }

  // Grants the transfer of block 0 again, after an attempt that left a checkpoint; returns its
  // name.
  std::string resume() {
    const std::uint64_t token = dispatcher_->grant_unpulled(task().id, kWorker.uuid, {});
    storage::FileRecord file = write_attempt(token, "c.safetensors", "weights");
    file.name = storage::RunLayout::attempt_directory(token) + "/c.safetensors";
    dispatcher_->record(CheckpointCommitted{token, 3, file, task().id});
    dispatcher_->record(TaskReleased{token, "preempted"});
    static_cast<void>(dispatcher_->grant_unpulled(task().id, kWorker.uuid, {}));
    return file.name;
  }
  void fail(ErrorKind kind, const std::string& name) {
    say(wire::Failed{kWorker, task().token, kind, "something about " + name, {name}});
  }

  FakeClock clock_;
  DispatcherConfig config_;
  std::unique_ptr<Dispatcher> dispatcher_;
  wire::Message welcome_;
};

// A purge may take more than three files from under one task: it would be given up for that.
TEST_F(LostInput, ThatIsGoneIsNoFailureOfTheTask) {
  for (int purge = 0; purge < 4; ++purge) {
    const std::string name = resume();
    std::filesystem::remove(layout_.resolve(name));
    fail(ErrorKind::kNotFound, name);
    EXPECT_EQ(task().state, TaskState::kPending);
    EXPECT_FALSE(task().checkpoint);
    EXPECT_TRUE(task().failures.empty());
  }
  static_cast<void>(dispatcher_->flush());
  EXPECT_EQ(num_records("lost"), 4);
  EXPECT_EQ(num_records("failed"), 0);
}

// Else a worker that cannot see the file system, or reads it wrongly, would fail for ever.
TEST_F(LostInput, ThatWeStillSeeOrThatIsDamagedCounts) {
  fail(ErrorKind::kNotFound, resume());
  EXPECT_EQ(task().failures.size(), 1U);
  const std::string name = resume();
  EXPECT_TRUE(task().failures.empty()) << "its checkpoint is progress";
  fail(ErrorKind::kCorrupt, name);
  EXPECT_EQ(task().failures.size(), 1U);
}

TEST_F(LostInput, ShortLeasesAskForHeartbeatsInTime) {
  const auto* welcome = std::get_if<wire::Welcome>(&welcome_);
  ASSERT_NE(welcome, nullptr);
  EXPECT_EQ(welcome->lease_seconds, 8);
  EXPECT_EQ(welcome->heartbeat_seconds, 2);
}

}  // namespace
}  // namespace hedgerow::coordinator
