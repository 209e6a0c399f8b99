// What the dispatcher says of the steps that died with whoever did them.
#include "coordinator/dispatch/actions.hpp"
#include "dispatcher_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

wire::Heartbeat heartbeat_at(const wire::Task& task, const std::string& phase, std::int64_t step) {
  wire::Heartbeat heartbeat{{"w1", 1}, task.fencing_token, {}};
  heartbeat.progress.phase = phase;
  heartbeat.progress.step = step;
  return heartbeat;
}

// Whoever looks on is told what a SIGKILL cost, also after the next restart.
TEST_F(DispatcherTest, AKilledTransferSaysWhichStepsAreDoneAgain) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const std::string name =
      storage::RunLayout::attempt_directory(task.fencing_token) + "/checkpoint.s40.safetensors";
  const storage::FileRecord checkpoint = write_attempt(task.fencing_token, name, "maps");
  EXPECT_EQ(
      wire::type_of(say("w1", wire::Checkpointed{{"w1", 1}, task.fencing_token, checkpoint, 40})),
      "committed");
  EXPECT_EQ(wire::type_of(say("w1", heartbeat_at(task, "training", 52))), "heartbeat_ack");
  dispatcher_->worker_died(
      "w1", 1, storage::ErrorKind::kUnavailable, "worker w1 was killed by signal 9");
  static_cast<void>(dispatcher_->flush());
  reopen();
  const TaskRecord& left = dispatcher_->state().task(TaskId::transfer(task.block));
  EXPECT_EQ(left.lost_steps, 12);
  EXPECT_EQ(left.reason,
            "failed (unavailable): worker w1 was killed by signal 9; 12 steps since step 40 are "
            "done again");
}

// As a second Ctrl-C does, which waits for no checkpoint: no failure, but steps are gone.
TEST_F(DispatcherTest, AWorkerThatWasKilledBecauseTheRunShouldEndSaysItToo) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  static_cast<void>(say("w1", heartbeat_at(task, "training", 7)));
  dispatcher_->worker_died(
      "w1", 1, storage::ErrorKind::kFenced, "worker w1 was killed by signal 9");
  static_cast<void>(dispatcher_->flush());
  reopen();
  const TaskRecord& left = dispatcher_->state().task(TaskId::transfer(task.block));
  EXPECT_EQ(left.lost_steps, 7);
  EXPECT_TRUE(left.failures.empty());
  EXPECT_EQ(left.reason,
            "released: worker w1 was killed by signal 9; 7 steps since step 0 are done again");
}

TEST_F(DispatcherTest, ALeaseThatRanOutSaysWhichStepsAreDoneAgainAndALoadingTaskLosesNone) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const wire::Heartbeat loading = heartbeat_at(task, "loading", 3);
  static_cast<void>(say("w1", loading));
  EXPECT_FALSE(
      lost_steps(dispatcher_->state().task(TaskId::transfer(task.block)), &loading.progress));
  static_cast<void>(say("w1", heartbeat_at(task, "training", 1)));
  pass(seconds(31));
  const TaskRecord& left = dispatcher_->state().task(TaskId::transfer(task.block));
  EXPECT_NE(left.reason.find("; 1 step since step 0 is done again"), std::string::npos)
      << left.reason;
}

// Between a checkpoint and the word that it is there lies a message, and at times a coordinator.
TEST_F(DispatcherTest, ACheckpointThatNobodyLivedToAnnounceIsResumedFromHoweverItsAttemptEnds) {
  const auto killed = [&](const wire::Task&) {
    dispatcher_->worker_died("w1", 1, storage::ErrorKind::kUnavailable, "killed");
  };
  const auto ran_out = [&](const wire::Task&) { pass(seconds(61)); };
  const auto gave_back = [&](const wire::Task& task) {
    say("w1", wire::Released{{"w1", 1}, task.fencing_token, "SIGTERM"});
  };
  const auto died_before = [&](const wire::Task& task) {
    const auto lost = dispatcher_->close_attempt(task.fencing_token, nullptr);
    dispatcher_->record(
        LeaseRevoked{task.fencing_token, "died meanwhile", /*expired=*/false, lost});
  };
  const auto left_for_good = [&](const wire::Task&) { say("w1", wire::Goodbye{{"w1", 1}}); };
  const std::vector<std::function<void(const wire::Task&)>> ends = {
      killed, ran_out, gave_back, died_before, left_for_good};
  for (const auto& end : ends) {
    std::filesystem::remove_all(layout_.journal_directory());
    std::filesystem::remove_all(layout_.root() / "attempts");
    reopen();
    hello("w1");
    const wire::Task task = grant_transfer("w1");
    const auto name_of = [&](std::int64_t step) {
      return storage::RunLayout::checkpoint(task.fencing_token, step, {1, 2});
    };
    for (const std::int64_t step : {10, 5})
      write_attempt(task.fencing_token, name_of(step), "maps");
    end(task);
    static_cast<void>(dispatcher_->flush());
    const TaskRecord left = replayed().task(TaskId::transfer(task.block));
    EXPECT_EQ(left.state, TaskState::kPending);
    ASSERT_TRUE(left.checkpoint);
    EXPECT_EQ(*left.checkpoint, (Checkpoint{{name_of(10), 4, {1, 2}}, 10}));
  }
}

}  // namespace
}  // namespace hedgerow::coordinator
