// What the desk says of the steps that died with whoever did them.
#include "coordinator/actions.hpp"
#include "dispatcher_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

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
  wire::Heartbeat heartbeat{{"w1", 1}, task.fencing_token, {}};
  heartbeat.progress.phase = "training";
  heartbeat.progress.step = 52;
  EXPECT_EQ(wire::type_of(say("w1", heartbeat)), "heartbeat_ack");
  desk_->worker_died("w1", 1, storage::ErrorKind::kUnavailable, "worker w1 was killed by signal 9");
  static_cast<void>(desk_->flush());
  reopen();
  const TaskRecord& left = desk_->state().task(TaskId::transfer(task.block));
  EXPECT_EQ(left.lost_steps, 12);
  EXPECT_EQ(left.reason,
            "failed (unavailable): worker w1 was killed by signal 9; 12 steps since step 40 are "
            "done again");
}

TEST_F(DispatcherTest, ALeaseThatRanOutSaysWhichStepsAreDoneAgainAndALoadingTaskLosesNone) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  wire::Heartbeat heartbeat{{"w1", 1}, task.fencing_token, {}};
  heartbeat.progress.phase = "loading";
  heartbeat.progress.step = 3;
  static_cast<void>(say("w1", heartbeat));
  EXPECT_FALSE(lost_steps(desk_->state().task(TaskId::transfer(task.block)), &heartbeat.progress));
  heartbeat.progress.phase = "training";
  heartbeat.progress.step = 1;
  static_cast<void>(say("w1", heartbeat));
  pass(seconds(31));
  const TaskRecord& left = desk_->state().task(TaskId::transfer(task.block));
  EXPECT_NE(left.reason.find("; 1 step since step 0 is done again"), std::string::npos)
      << left.reason;
}

}  // namespace
}  // namespace hedgerow::coordinator
