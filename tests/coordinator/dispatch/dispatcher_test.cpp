// The dispatcher, message by message, with a clock of the test's own and a real journal.
#include <gmock/gmock.h>

#include <fstream>

#include "coordinator/dispatch/commit.hpp"
#include "coordinator/state/fold.hpp"
#include "dispatcher_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(DispatcherTest, AGrantIsOnDiskBeforeAnybodyHearsOfIt) {
  hello("w1");
  const wire::Task task = request("w1");
  EXPECT_EQ(task.kind, wire::TaskKind::kCapture);
  EXPECT_EQ(num_records("granted"), 1);
  EXPECT_EQ(replayed().holder(task.fencing_token)->worker, "w1");
}

TEST_F(DispatcherTest, AWorkerThatAsksAgainGetsTheSameTaskAgain) {
  hello("w1");
  const wire::Task task = request("w1");
  EXPECT_EQ(request("w1"), task);
  EXPECT_EQ(num_records("granted"), 1);
}

TEST_F(DispatcherTest, AnUnknownWorkerIsAskedWhoItIs) {
  EXPECT_EQ(wire::type_of(say("w1", wire::Request{{"w1", 1}, -1})), "who_are_you");
}

TEST_F(DispatcherTest, AWorkerOfAnotherProtocolIsRefusedWithBothNumbers) {
  std::string frame = wire::encode(wire::Request{{"w1", 1}, -1});
  frame[4] = 9;
  dispatcher_->receive("peer-w1", frame);
  const auto replies = dispatcher_->flush();
  ASSERT_EQ(replies.size(), 1U);
  const std::string reason = std::get<wire::Refused>(replies[0].message).reason;
  EXPECT_NE(reason.find("protocol 9"), std::string::npos) << reason;
  EXPECT_NE(reason.find("speaks " + std::to_string(wire::kProtocol)), std::string::npos) << reason;
}

TEST_F(DispatcherTest, AWorkerOfAnotherVersionIsRefusedWithBothAndNotedOnce) {
  wire::Hello message;
  message.worker = {"w1", 1};
  message.version = "2";
  for (int time = 0; time < 3; ++time) {
    const wire::Message reply = say("w1", message);
    ASSERT_EQ(wire::type_of(reply), "refused");
    const std::string reason = std::get<wire::Refused>(reply).reason;
    EXPECT_NE(reason.find("version 2, the coordinator 1"), std::string::npos) << reason;
  }
  EXPECT_EQ(num_records("noted"), 1);
  EXPECT_EQ(wire::type_of(say("w1", wire::Request{{"w1", 1}, -1})), "who_are_you");
}

TEST_F(DispatcherTest, WorkersOfAnotherBuildAreWelcomeAndNotedOnce) {
  for (const char* worker : {"w1", "w2"}) {
    wire::Hello message;
    message.worker = {worker, 1};
    message.version = "1";
    message.build = "1+other";
    EXPECT_EQ(wire::type_of(say(worker, message)), "welcome");
  }
  EXPECT_EQ(num_records("noted"), 1);
}

TEST_F(DispatcherTest, FramesThatAreNoMessageAreDroppedAndTheRestIsAnswered) {
  dispatcher_->receive("peer", "GET / HTTP/1.1");
  dispatcher_->receive("peer", wire::encode(wire::Stop{"x"}).substr(0, 12));
  hello("w1");
}

TEST_F(DispatcherTest, APeerThatSendsNoiseForMinutesGetsAFewLinesAMinuteAndACount) {
  const std::string damaged = wire::encode(wire::Stop{std::string(2000, 'x')});
  for (int i = 0; i < 10'000; ++i) {
    dispatcher_->receive("peer" + std::to_string(i), "GET / HTTP/1.1", "10.0.0.7");
    dispatcher_->receive("peer", damaged.substr(0, damaged.size() - 9), "10.0.0.7");
    dispatcher_->receive(
        "peer", wire::encode(wire::Goodbye{{"w1", 1}}), "10.0.0.7");  // this one is sound
  }
  EXPECT_THAT(logged_,
              ElementsAre("messages from 10.0.0.7: dropped 14 bytes that are no hedgerow message",
                          HasSubstr("messages from 10.0.0.7: dropped a damaged one: not JSON"),
                          HasSubstr("dropped 14 bytes")));
  EXPECT_LE(logged_[1].size(), 500U) << "it quotes what was sent";
  logged_.clear();
  dispatcher_->receive("peer", "x", "10.0.0.8");
  EXPECT_THAT(logged_, ElementsAre(HasSubstr("messages from 10.0.0.8: dropped 1 bytes")));
  logged_.clear();
  pass(minutes(1));
  EXPECT_THAT(
      logged_,
      ElementsAre("left out 19997 more lines about messages from 10.0.0.7 within a minute"));
}

TEST_F(DispatcherTest, StrangersOfAnotherVersionFillNeitherTheJournalNorTheStatus) {
  wire::Hello message;
  message.version = std::string(60'000, '2');
  for (int i = 0; i < 1'000; ++i) {
    message.worker = {"w" + std::to_string(i), 1};
    EXPECT_EQ(wire::type_of(say(message.worker.uuid, message)), "refused");
  }
  EXPECT_EQ(num_records("noted"), 3);
  pass(minutes(1));
  EXPECT_THAT(logged_, ElementsAre(HasSubstr("left out 997 more lines about workers of other")));
  const FoldedRun folded = fold(storage::replay_journal(layout_));
  for (const std::string& warning : folded.warnings) EXPECT_LE(warning.size(), 300U);
}

TEST_F(DispatcherTest, IdleWorkersThatCameAtOnceAreAskedBackOneByOne) {
  constexpr int kWorkers = 1'000;
  const auto name = [](int i) { return "w" + std::to_string(i); };
  for (int i = 0; i < kWorkers; ++i) hello(name(i));
  std::vector<int> pauses;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kWorkers; ++i) {
      const wire::Message reply = say(name(i), wire::Request{{name(i), 1}, -1});
      if (const auto* idle = std::get_if<wire::Idle>(&reply))
        pauses.push_back(idle->retry_milliseconds);
    }
    ASSERT_GT(pauses.size(), kWorkers - 100U) << "few tasks are there for so many";
    EXPECT_GE(pauses.front(), config_.idle.count());
    EXPECT_LE(pauses.back(), config_.idle.count() + 2 * kWorkers)
        << "so long that work would wait for workers";
    for (std::size_t i = 1; round == 0 && i < pauses.size(); ++i)
      ASSERT_EQ(pauses[i], pauses[i - 1] + 2) << "of worker " << i;
    pauses.clear();
  }
  clock_.advance(std::chrono::minutes(1));
  const wire::Message reply = say("w999", wire::Request{{"w999", 1}, -1});
  EXPECT_EQ(std::get<wire::Idle>(reply).retry_milliseconds, config_.idle.count());
}

TEST_F(DispatcherTest, AStaleTokenIsRejectedAtCommitAndItsFileStaysWhereItIs) {
  hello("w1");
  hello("w2");
  const wire::Task first = grant_transfer("w1");
  const auto artifact = write_artifact(first.block, first.fencing_token);
  pass(seconds(31));
  EXPECT_EQ(num_records("revoked"), 3) << "all three leases ran out";
  hello("w2");
  const wire::Task second = request("w2");
  EXPECT_GT(second.fencing_token, first.fencing_token);
  hello("w1");
  const auto reply =
      say("w1", wire::Done{{"w1", 1}, first.fencing_token, {artifact}, nlohmann::json::object()});
  EXPECT_EQ(wire::type_of(reply), "fenced");
  EXPECT_FALSE(std::filesystem::exists(layout_.resolve(artifact.name)));
  EXPECT_EQ(num_records("done"), 0);
}

TEST_F(DispatcherTest, ALateRenameOfADeadAttemptIsHarmless) {
  hello("w1");
  const wire::Task first = grant_transfer("w1");
  const auto stale = write_artifact(first.block, first.fencing_token);
  pass(seconds(31));
  hello("w2");
  wire::Task second = grant_transfer("w2");
  ASSERT_EQ(second.block, first.block);
  const auto artifact = write_artifact(second.block, second.fencing_token);
  say("w2", wire::Done{{"w2", 1}, second.fencing_token, {artifact}, nlohmann::json::object()});
  commit_file(layout_, first.fencing_token, stale);  // a stale coordinator renames now
  const State state = replayed();
  EXPECT_EQ(state.task(TaskId::transfer(second.block)).files[0].name, artifact.name);
  EXPECT_NE(stale.name, artifact.name);
}

TEST_F(DispatcherTest, DoneIsRepeatedSafelyWhenItsReplyWasLost) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const wire::Done done{{"w1", 1},
                        task.fencing_token,
                        {write_artifact(task.block, task.fencing_token)},
                        nlohmann::json::object()};
  EXPECT_EQ(wire::type_of(say("w1", done)), "committed");
  EXPECT_EQ(wire::type_of(say("w1", done)), "committed");
  EXPECT_EQ(num_records("done"), 1);
  EXPECT_TRUE(std::filesystem::exists(layout_.resolve(done.files[0].name)));
}

TEST_F(DispatcherTest, ACrashBetweenRenameAndRecordIsSettledByTheRepeatedMessage) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const auto artifact = write_artifact(task.block, task.fencing_token);
  commit_file(layout_, task.fencing_token, artifact);  // and here the coordinator dies
  reopen();
  wire::Hello again;
  again.worker = {"w1", 1};
  again.version = "1";
  again.held = task;
  const auto welcome = say("w1", again);
  EXPECT_TRUE(std::get<wire::Welcome>(welcome).keeps_task)
      << "after a restart a granted lease is kept";
  const auto reply =
      say("w1", wire::Done{{"w1", 1}, task.fencing_token, {artifact}, nlohmann::json::object()});
  EXPECT_EQ(wire::type_of(reply), "committed");
  EXPECT_EQ(replayed().task(TaskId::transfer(task.block)).state, TaskState::kDone);
}

TEST_F(DispatcherTest, AFileThatIsNotWhatWasAnnouncedIsNotCommitted) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  auto artifact = write_artifact(task.block, task.fencing_token);
  artifact.size += 1;
  const auto reply =
      say("w1", wire::Done{{"w1", 1}, task.fencing_token, {artifact}, nlohmann::json::object()});
  EXPECT_EQ(wire::type_of(reply), "fenced");
  EXPECT_EQ(num_records("failed"), 1);
  EXPECT_FALSE(std::filesystem::exists(layout_.resolve(artifact.name)));
}

TEST_F(DispatcherTest, ANameThatTheTaskMustNotGiveIsRefused) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  auto file = write_attempt(task.fencing_token, "run.toml", "model.path = 'mine'");
  const auto reply =
      say("w1", wire::Done{{"w1", 1}, task.fencing_token, {file}, nlohmann::json::object()});
  EXPECT_EQ(wire::type_of(reply), "fenced");
  EXPECT_FALSE(std::filesystem::exists(layout_.root() / "run.toml"));
}

TEST_F(DispatcherTest, ARestartGivesEveryLeaseAFullTerm) {
  hello("w1");
  const wire::Task task = request("w1");
  clock_.advance(seconds(29));
  reopen();
  pass(seconds(29));
  EXPECT_NE(dispatcher_->state().holder(task.fencing_token), nullptr);
  pass(seconds(2));
  EXPECT_EQ(dispatcher_->state().holder(task.fencing_token), nullptr);
}

TEST_F(DispatcherTest, TokensGrowOverRestartsAndExceedFileNames) {
  hello("w1");
  const wire::Task first = request("w1");
  config_.token_floor = 500;  // a file name that the journal does not know
  reopen();
  hello("w2");
  EXPECT_EQ(request("w2").fencing_token, 501U);
  EXPECT_LT(first.fencing_token, 501U);
}

TEST_F(DispatcherTest, ALaterIncarnationEndsWhatTheEarlierOneHeld) {
  hello("w1", 1);
  const wire::Task task = request("w1");
  hello("w1", 2);
  EXPECT_EQ(dispatcher_->state().holder(task.fencing_token), nullptr);
  EXPECT_EQ(num_records("failed"), 1) << "a crash counts";
  wire::Hello old;
  old.worker = {"w1", 1};
  old.version = "1";
  EXPECT_EQ(wire::type_of(say("w1", old)), "refused");
}

TEST_F(DispatcherTest, AHangingTaskFailsAndItsWorkerIsNamed) {
  hello("w1");
  const wire::Task task = request("w1");
  wire::Progress progress;
  progress.phase = "capturing";
  for (int beat = 0; beat < 25; ++beat) {
    say("w1", wire::Heartbeat{{"w1", 1}, task.fencing_token, progress});
    pass(seconds(5));
  }
  EXPECT_EQ(dispatcher_->take_hung_workers(), std::vector<std::string>{"w1"});
  EXPECT_NE(dispatcher_->state().task(TaskId::capture(0, 0)).reason.find("hung"),
            std::string::npos);
}

TEST_F(DispatcherTest, ADamagedInputIsLostAndTheTaskTriedAgain) {
  hello("w1");
  const wire::Task task = request("w1");
  const std::string name = storage::RunLayout::hidden_shard(1, 0, task.fencing_token);
  const auto shard = write_attempt(task.fencing_token, name, "not really a shard");
  ASSERT_EQ(wire::type_of(say("w1", wire::ShardReady{{"w1", 1}, task.fencing_token, 0, shard})),
            "committed");
  say("w1", wire::Done{{"w1", 1}, task.fencing_token, {}, nlohmann::json::object()});
  const wire::Task reader = request("w1");
  say("w1",
      wire::Failed{
          {"w1", 1}, reader.fencing_token, storage::ErrorKind::kCorrupt, "bad chunk", {name}});
  EXPECT_EQ(num_records("lost"), 1);
  EXPECT_EQ(dispatcher_->state().task(TaskId::capture(0, 0)).state, TaskState::kPending);
}

TEST_F(DispatcherTest, ATaskThatFailsHereOnlyIsGivenUpWhenNoSecondWorkerComes) {
  hello("w1");
  for (int attempt = 0; attempt < 3; ++attempt) {
    const wire::Task task = request("w1");
    ASSERT_EQ(task.block, 0);
    say("w1",
        wire::Failed{{"w1", 1}, task.fencing_token, storage::ErrorKind::kInternal, "boom", {}});
  }
  pass(seconds(1));  // now it is known to wait
  pass(minutes(9));
  EXPECT_EQ(dispatcher_->state().task(TaskId::capture(0, 0)).state, TaskState::kPending);
  pass(minutes(2));
  EXPECT_EQ(dispatcher_->state().task(TaskId::capture(0, 0)).state, TaskState::kQuarantined);
  EXPECT_NE(dispatcher_->state().task(TaskId::capture(0, 0)).reason.find("no second worker came"),
            std::string::npos);
}

TEST_F(DispatcherTest, AGrantSaysWhatThePlanCountsForItSoThatAWorkerCanSayItToo) {
  config_.needs.capture = 7;
  reopen();
  hello("w1");
  EXPECT_EQ(request("w1").memory_bytes, 7U);
}

TEST_F(DispatcherTest, AFullDiskStopsTheRunAndSaysWhatToDo) {
  config_.room_for_retry = ~0ULL;
  reopen();
  hello("w1");
  const wire::Task task = request("w1");
  say("w1",
      wire::Failed{{"w1", 1},
                   task.fencing_token,
                   storage::ErrorKind::kExhausted,
                   "write x: No space left",
                   {}});
  ASSERT_TRUE(dispatcher_->fatal());
  EXPECT_EQ(storage::exit_code(dispatcher_->fatal()->kind()), storage::ExitCode::kEnvironment);
  EXPECT_NE(std::string(dispatcher_->fatal()->what()).find("free space"), std::string::npos);
  EXPECT_NE(std::string(dispatcher_->fatal()->what()).find("the run goes on with at least"),
            std::string::npos);
}

TEST_F(DispatcherTest, ACheckpointThatItsWorkerReplacedIsNoFailure) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const std::string prefix = storage::RunLayout::attempt_directory(task.fencing_token) + "/";
  const storage::FileRecord gone{prefix + "checkpoint.s10.safetensors", 10, {}};
  EXPECT_EQ(wire::type_of(say("w1", wire::Checkpointed{{"w1", 1}, task.fencing_token, gone, 10})),
            "committed");
  EXPECT_EQ(num_records("checkpointed"), 0);
  const auto here =
      write_attempt(task.fencing_token, prefix + "checkpoint.s20.safetensors", "state");
  EXPECT_EQ(wire::type_of(say("w1", wire::Checkpointed{{"w1", 1}, task.fencing_token, here, 20})),
            "committed");
  EXPECT_EQ(first_step(replayed().task(TaskId::transfer(task.block))), 20);
}

TEST_F(DispatcherTest, ACheckpointOutsideItsAttemptIsRefused) {
  hello("w1");
  const wire::Task task = grant_transfer("w1");
  const storage::FileRecord file{
      "attempts/t" + std::to_string(task.fencing_token) + "/../t999/c", 1, {}};
  EXPECT_EQ(wire::type_of(say("w1", wire::Checkpointed{{"w1", 1}, task.fencing_token, file, 1})),
            "fenced");
}

TEST_F(DispatcherTest, TheMpiStageJoinsWithItsTokenAndIsSparedWhenTheOthersMustStop) {
  geometry_.finetunes = true;
  std::filesystem::remove_all(layout_.journal_directory());
  reopen();
  hello("w1");
  const std::uint64_t token = dispatcher_->grant_unpulled(TaskId::finetune(), "mpi", seconds(300));
  dispatcher_->stop_workers("room for finetune", Dispatcher::Spare::kFinetune);
  EXPECT_EQ(wire::type_of(say("w1", wire::Request{{"w1", 1}, -1})), "stop");
  wire::Hello rank0;
  rank0.worker = {"mpi", token};  // its incarnation is its own business
  rank0.version = "1";
  rank0.held = wire::Task{};
  rank0.held->kind = wire::TaskKind::kFinetune;
  rank0.held->fencing_token = token;
  EXPECT_TRUE(std::get<wire::Welcome>(say("mpi", rank0)).keeps_task);
  const auto reply = say("mpi", wire::Request{{"mpi", token}, -1});
  ASSERT_EQ(wire::type_of(reply), "grant");
  EXPECT_EQ(std::get<wire::Grant>(reply).task.kind, wire::TaskKind::kFinetune);
  EXPECT_TRUE(std::get<wire::HeartbeatAck>(say("mpi", wire::Heartbeat{{"mpi", token}, token, {}}))
                  .lease_valid);
  const auto config = write_attempt(
      token, storage::RunLayout::adapter_directory(token) + "/adapter_config.json", "{}");
  const auto weights = write_attempt(
      token, storage::RunLayout::adapter_directory(token) + "/adapter_model.safetensors", "x");
  const wire::Done done{{"mpi", token}, token, {weights, config}, nlohmann::json::object()};
  EXPECT_EQ(wire::type_of(say("mpi", done)), "committed");
  EXPECT_EQ(num_records("failed"), 0);
}

TEST_F(DispatcherTest, LongInputListsGoThroughAFile) {
  geometry_.num_shards = 300;
  geometry_.shards_per_capture = 300;
  std::filesystem::remove_all(layout_.journal_directory());
  reopen();
  hello("w1");
  const wire::Task capture = request("w1");
  for (int shard = 0; shard < 300; ++shard) {
    dispatcher_->record(ShardCommitted{
        capture.fencing_token, shard, {"hidden/b0001/s" + std::to_string(shard), 1, {}}});
  }
  say("w1", wire::Done{{"w1", 1}, capture.fencing_token, {}, nlohmann::json::object()});
  const wire::Task next = request("w1", 1);
  ASSERT_TRUE(next.inputs_file);
  EXPECT_TRUE(next.inputs.empty());
  EXPECT_TRUE(std::filesystem::exists(layout_.resolve(next.inputs_file->name)));
}

}  // namespace
}  // namespace hedgerow::coordinator
