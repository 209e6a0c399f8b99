#include "coordinator/state/state.hpp"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "coordinator/dispatch/actions.hpp"
#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/state/task_graph.hpp"
#include "tests/coordinator/state_fixture.hpp"

namespace hedgerow::coordinator {
namespace {

bool wants(const std::vector<Intent>& intents, IntentKind kind) {
  return std::any_of(
      intents.begin(), intents.end(), [kind](const Intent& intent) { return intent.kind == kind; });
}

void complete_all_but_finetune(State& state) {
  std::uint64_t token = state.last_token;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  for (int block = 0; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  complete(state, TaskId::evaluate(Subject::kTeacher), ++token);
  complete(state, TaskId::assemble(), ++token);
  complete(state, TaskId::evaluate(Subject::kTransfer), ++token);
}

TEST(State, FinetuneWaitsForAnEvaluationThatHasBegunAndGoesBeforeTheOthers) {
  State state = started_state();
  const TaskId teacher = TaskId::evaluate(Subject::kTeacher);
  const TaskId student = TaskId::evaluate(Subject::kTransfer);
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  EXPECT_TRUE(is_ready(state, state.task(teacher))) << "a worker may be idle";
  const std::uint64_t evaluation = ++token;
  grant(state, teacher, evaluation);
  for (int block = 0; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  complete(state, TaskId::assemble(), ++token);
  EXPECT_EQ(waits_for(state, state.task(TaskId::finetune())), "evaluate/teacher is not done yet");
  EXPECT_EQ(waits_for(state, state.task(student)), "finetune comes first");
  must(state, TaskFailed{evaluation, storage::ErrorKind::kInternal, "boom"});
  EXPECT_EQ(waits_for(state, state.task(teacher)), "finetune comes first");
  EXPECT_TRUE(is_ready(state, state.task(TaskId::finetune())));
  EXPECT_FALSE(state.index.ready.contains(teacher));
  complete(state, TaskId::finetune(), ++token);
  for (const Subject subject : {Subject::kTeacher, Subject::kTransfer, Subject::kLora})
    EXPECT_TRUE(state.index.ready.contains(TaskId::evaluate(subject)));
}

TEST(State, AnEvaluationInPiecesIsPutTogetherOnceEachOfItsPiecesIsThere) {
  RunStarted run = small_run();
  run.geometry.num_evaluate_pieces = 2;
  State state;
  must(state, run);
  const TaskId whole = TaskId::evaluate(Subject::kTeacher);
  EXPECT_TRUE(is_ready(state, state.task(TaskId::evaluate(Subject::kTeacher, 0))));
  EXPECT_FALSE(is_ready(state, state.task(TaskId::evaluate(Subject::kLora, 0))));
  complete(state, TaskId::evaluate(Subject::kTeacher, 1), 1);
  EXPECT_EQ(waits_for(state, state.task(whole)), "1 of its pieces are not evaluated yet");
  complete(state, TaskId::evaluate(Subject::kTeacher, 0), 2);
  EXPECT_TRUE(state.index.ready.contains(whole));
  const wire::Task task = make_wire_task(state, whole, 3);
  EXPECT_EQ(task.num_pieces, 2);
  EXPECT_EQ(task.piece, -1);
  ASSERT_EQ(task.inputs.size(), 2U);
  EXPECT_EQ(task.inputs[0].name, "out.t2") << "in the order of the pieces";
  EXPECT_EQ(state_from_json(state_to_json(state)), state);
}

TEST(State, ARunGoesFromCaptureToTheLastEvaluation) {
  State state = started_state();
  EXPECT_EQ(phase_of(state), RunPhase::kRunning);
  EXPECT_TRUE(is_ready(state, state.task(TaskId::transfer(0)))) << "boundary 0 is never stored";
  EXPECT_FALSE(is_ready(state, state.task(TaskId::transfer(1))));
  EXPECT_EQ(waits_for(state, state.task(TaskId::transfer(1))), "boundary 1 is not complete");
  complete_all_but_finetune(state);
  EXPECT_TRUE(wants(actions_for(state, kKeepAll), IntentKind::kLaunchFinetune));
  complete(state, TaskId::finetune(), 100);
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kFinish));
  complete(state, TaskId::evaluate(Subject::kLora), 101);
  EXPECT_EQ(phase_of(state), RunPhase::kDone);
  ASSERT_EQ(actions_for(state, kKeepAll).size(), 1U);
  EXPECT_EQ(actions_for(state, kKeepAll)[0].kind, IntentKind::kFinish);
}

TEST(State, TheLastBlockMayBeShorter) {
  const Geometry geometry = small_geometry();
  EXPECT_EQ(geometry.num_blocks(), 3);
  EXPECT_EQ(geometry.layers_of(1), 2);
  EXPECT_EQ(geometry.layers_of(2), 1);
}

TEST(State, BlocksThatStaySoftmaxAreNeitherTrainedNorCapturedFor) {
  Geometry geometry = small_geometry();
  geometry.untrained_blocks = {2};
  State state;
  must(state, RunStarted{geometry, "test"});
  EXPECT_EQ(geometry.last_boundary(), 1);
  EXPECT_FALSE(state.tasks.contains(TaskId::transfer(2)));
  EXPECT_FALSE(state.tasks.contains(TaskId::capture(1, 0)));
}

TEST(State, FencingTokensOnlyGrow) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 41);
  const auto rejection = coordinator::apply(state, Granted{TaskId::capture(0, 0), 41, "w2", 1, ""});
  ASSERT_TRUE(rejection);
  EXPECT_NE(rejection->reason.find("does not exceed 41"), std::string::npos) << rejection->reason;
}

TEST(State, AStaleTokenChangesNothingAfterTheTaskWentToAnother) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1, "w1");
  must(state, LeaseRevoked{1, "no heartbeat"});
  grant(state, TaskId::transfer(0), 2, "w2");
  const auto rejection = coordinator::apply(state, TaskDone{1, {file_named("late")}, nullptr});
  ASSERT_TRUE(rejection);
  EXPECT_EQ(rejection->kind, storage::ErrorKind::kFenced);
  EXPECT_EQ(state.task(TaskId::transfer(0)).worker, "w2");
  EXPECT_EQ(state.task(TaskId::transfer(0)).state, TaskState::kGranted);
}

// A journal that lost a grant to damage may hold its token twice, once for another task.
TEST(State, ARecordOfAnotherTaskIsNotAppliedToTheHolderOfItsToken) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1);
  EXPECT_TRUE(coordinator::apply(state, TaskDone{1, {}, nullptr, TaskId::capture(0, 0)}));
  EXPECT_TRUE(coordinator::apply(
      state, CheckpointCommitted{1, 3, file_named("attempts/t1/c"), TaskId::transfer(1)}));
  EXPECT_EQ(state.task(TaskId::transfer(0)).state, TaskState::kGranted);
  EXPECT_FALSE(state.task(TaskId::transfer(0)).checkpoint);
  const Event done = TaskDone{1, {file_named("a")}, nullptr, TaskId::transfer(0)};
  EXPECT_FALSE(coordinator::apply(state, event_from_json(event_to_json(done))));
  EXPECT_EQ(state.task(TaskId::transfer(0)).state, TaskState::kDone);
}

TEST(State, ALostShardIsCapturedAgainAloneAndWhatWaitsForItWaits) {
  State state = started_state();
  complete(state, TaskId::capture(0, 0), 1);
  complete(state, TaskId::capture(0, 1), 2);
  ASSERT_TRUE(boundary_complete(state, 1));
  must(state, FileLost{"hidden/b0001/s00001.t2.h5", "hash differs"});
  EXPECT_EQ(state.task(TaskId::capture(0, 1)).state, TaskState::kPending);
  EXPECT_EQ(state.task(TaskId::capture(0, 0)).state, TaskState::kDone);
  EXPECT_NE(state.task(TaskId::capture(0, 1)).reason.find("hash differs"), std::string::npos);
  EXPECT_FALSE(is_ready(state, state.task(TaskId::transfer(1))));
}

TEST(State, ALostArtifactIsTrainedAgain) {
  State state = started_state();
  complete(state, TaskId::transfer(0), 1);
  must(state, FileLost{"out.t1", "missing"});
  EXPECT_EQ(state.task(TaskId::transfer(0)).state, TaskState::kPending);
  EXPECT_TRUE(state.task(TaskId::transfer(0)).files.empty());
}

TEST(State, ALostCheckpointIsForgottenAndTheTaskStartsAgain) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1);
  must(state, CheckpointCommitted{1, 10, file_named("attempts/t1/c")});
  must(state, TaskFailed{1, storage::ErrorKind::kUnavailable, "killed"});
  ASSERT_TRUE(state.task(TaskId::transfer(0)).checkpoint);
  must(state, FileLost{"attempts/t1/c", "missing"});
  EXPECT_FALSE(state.task(TaskId::transfer(0)).checkpoint);
}

TEST(State, UnkeptBoundariesAreDroppedWhenNobodyNeedsThemAndComeBackWhenOneDoes) {
  State state = started_state();
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  EXPECT_FALSE(wants(actions_for(state, kKeepNone), IntentKind::kDropBoundary))
      << "transfer 1 still reads boundary 1";
  complete(state, TaskId::transfer(1), ++token);
  const auto intents = actions_for(state, kKeepNone);
  ASSERT_TRUE(wants(intents, IntentKind::kDropBoundary));
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kDropBoundary));
  must(state, BoundaryDropped{1});
  EXPECT_FALSE(wants(actions_for(state, kKeepNone), IntentKind::kDropBoundary))
      << "intents are idempotent";
  // A shard of boundary 2 is lost: its capture reads boundary 1, which has to come back, that piece
  // alone.
  must(state, FileLost{state.shards[2][1].file.name, "missing"});
  std::vector<TaskId> again;
  for (const Intent& intent : actions_for(state, kKeepNone)) {
    if (intent.kind == IntentKind::kRecapture) again.push_back(intent.task);
  }
  ASSERT_EQ(again, std::vector<TaskId>{TaskId::capture(0, 1)});
  must(state, Recaptured{again[0], "test"});
  EXPECT_TRUE(is_ready(state, state.task(TaskId::capture(0, 1))));
  EXPECT_FALSE(is_ready(state, state.task(TaskId::capture(1, 1))));
}

State state_with_logits() {
  State state;
  must(state, run_with_logits());
  return state;
}

TEST(State, FinetuneWaitsForTheLogitsAndThoseForTheirPieceOfTheLastBoundary) {
  State state = state_with_logits();
  EXPECT_EQ(waits_for(state, state.task(TaskId::logits(0))), "shards of boundary 2 are missing");
  std::uint64_t token = 0;
  complete(state, TaskId::capture(0, 0), ++token);
  complete(state, TaskId::capture(1, 0), ++token);
  EXPECT_TRUE(is_ready(state, state.task(TaskId::logits(0))));
  EXPECT_FALSE(is_ready(state, state.task(TaskId::logits(1))));
  complete(state, TaskId::logits(0), ++token);
  complete(state, TaskId::capture(0, 1), ++token);
  complete(state, TaskId::capture(1, 1), ++token);
  for (int block = 0; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  complete(state, TaskId::evaluate(Subject::kTeacher), ++token);
  complete(state, TaskId::assemble(), ++token);
  complete(state, TaskId::evaluate(Subject::kTransfer), ++token);
  EXPECT_EQ(waits_for(state, state.task(TaskId::finetune())),
            "1 pieces of the teacher's logits are not there yet");
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kLaunchFinetune));
  complete(state, TaskId::logits(1), ++token);
  EXPECT_TRUE(wants(actions_for(state, kKeepAll), IntentKind::kLaunchFinetune));
}

TEST(State, TheLastBoundaryStaysWhileLogitsAreToBeComputedFromIt) {
  State state = state_with_logits();
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  for (int block = 1; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  const auto dropped = [&] {
    std::vector<int> boundaries;
    for (const Intent& intent : actions_for(state, kKeepNone)) {
      if (intent.kind == IntentKind::kDropBoundary) boundaries.push_back(intent.boundary);
    }
    return boundaries;
  };
  EXPECT_EQ(dropped(), std::vector<int>{1});
  for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::logits(piece), ++token);
  EXPECT_EQ(dropped(), (std::vector<int>{1, 2}));
}

// The events of a job whose finetune learned from the teacher's logits and which kept no boundary,
// as the build of 2026-11-27 wrote them: there the logits were "dropped" as boundary 2 of 2 blocks.
TEST(State, TheJournalOfAnEarlierBuildReplaysWithItsLogitsDropped) {
  std::ifstream file(std::filesystem::path(HEDGEROW_SOURCE_DIR) /
                     "tests/coordinator/state/recorded_events.jsonl");
  State state;
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const nlohmann::json written = nlohmann::json::parse(line);
    const Event event = event_from_json(written);
    EXPECT_EQ(event_to_json(event), written);
    must(state, event);
  }
  EXPECT_EQ(count, 40);
  for (int piece = 0; piece < state.geometry->num_logit_pieces; ++piece)
    EXPECT_EQ(state.task(TaskId::logits(piece)).state, TaskState::kDropped);
  EXPECT_EQ(phase_of(state), RunPhase::kDone);
  EXPECT_EQ(state_from_json(state_to_json(state)), state);
}

TEST(State, LogitsAreDroppedAfterFinetuneAndComeBackWithTheirBoundaryWhenItIsLost) {
  State state = state_with_logits();
  std::uint64_t token = 0;
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
  }
  for (int block = 0; block < 3; ++block) complete(state, TaskId::transfer(block), ++token);
  for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::logits(piece), ++token);
  for (int boundary = 1; boundary < 3; ++boundary) must(state, BoundaryDropped{boundary});
  EXPECT_TRUE(coordinator::apply(state, BoundaryDropped{4})) << "no such boundary";
  complete(state, TaskId::assemble(), ++token);
  complete(state, TaskId::finetune(), ++token);
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kDropLogits));
  ASSERT_TRUE(wants(actions_for(state, kKeepNone), IntentKind::kDropLogits));
  must(state, LogitsDropped{});
  EXPECT_EQ(state.task(TaskId::logits(1)).state, TaskState::kDropped);
  EXPECT_FALSE(wants(actions_for(state, kKeepNone), IntentKind::kDropLogits));
  must(state, FileLost{state.task(TaskId::finetune()).files.at(0).name, "missing"});
  const auto recaptured = [&] {
    std::vector<TaskId> tasks;
    for (const Intent& intent : actions_for(state, kKeepNone)) {
      if (intent.kind == IntentKind::kRecapture) tasks.push_back(intent.task);
    }
    for (const TaskId& task : tasks) must(state, Recaptured{task, "test"});
    return tasks;
  };
  EXPECT_EQ(recaptured(), (std::vector<TaskId>{TaskId::logits(0), TaskId::logits(1)}));
  EXPECT_FALSE(is_ready(state, state.task(TaskId::logits(0))));
  EXPECT_EQ(recaptured().size(), 4U) << "boundaries 1 and 2, two pieces each";
}

TEST(State, ACoordinatorThatDiedAssemblingLeavesTheTaskToTheNext) {
  State state = started_state();
  grant(state, TaskId::assemble(), 1, "coordinator");
  must(state, TermStarted{});
  EXPECT_EQ(state.task(TaskId::assemble()).state, TaskState::kPending);
}

TEST(Quarantine, ThreeFailuresOnTwoWorkersGiveTheTaskUpAndTheRestFinishes) {
  State state = started_state();
  std::uint64_t token = 0;
  for (const char* worker : {"w1", "w2", "w1"}) {
    EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
    grant(state, TaskId::transfer(2), ++token, worker);
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "boom"});
  }
  const auto intents = actions_for(state, kKeepAll);
  ASSERT_TRUE(wants(intents, IntentKind::kQuarantine));
  must(state, Quarantined{TaskId::transfer(2), quarantine_reason(state.task(TaskId::transfer(2)))});
  EXPECT_NE(state.task(TaskId::transfer(2)).reason.find("3 failures in a row on 2 workers"),
            std::string::npos);
  for (int block = 0; block < 2; ++block) {
    for (int piece = 0; piece < 2; ++piece) complete(state, TaskId::capture(block, piece), ++token);
    complete(state, TaskId::transfer(block), ++token);
  }
  complete(state, TaskId::evaluate(Subject::kTeacher), ++token);
  EXPECT_EQ(phase_of(state), RunPhase::kPartial);
  EXPECT_TRUE(wants(actions_for(state, kKeepAll), IntentKind::kFinish));
}

TEST(Quarantine, ThreeFailuresOnOneWorkerWaitForASecondOne) {
  State state = started_state();
  for (std::uint64_t token = 1; token <= 3; ++token) {
    grant(state, TaskId::transfer(0), token, "w1");
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "boom"});
  }
  EXPECT_TRUE(wants_second_worker(state.task(TaskId::transfer(0))));
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
}

TEST(Quarantine, ATransferThatGivesItselfUpStartsAgainFromTheNextSeedIfTheRecipeSaysSo) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1, "w1");
  must(state, CheckpointCommitted{1, 10, file_named("attempts/t1/c")});
  must(state, TaskReleased{1, "SIGTERM"});
  for (std::uint64_t token = 2; token <= 4; ++token) {
    grant(state, TaskId::transfer(0), token, "w1");
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "loss of layer 1 is not finite"});
  }
  EXPECT_FALSE(wants(actions_for(state, kKeepAll, 0), IntentKind::kReseed));
  ASSERT_TRUE(wants(actions_for(state, kKeepAll, 1), IntentKind::kReseed));
  must(state, Retried{TaskId::transfer(0), "test", state.task(TaskId::transfer(0)).seed + 1});
  EXPECT_EQ(state.task(TaskId::transfer(0)).seed, small_geometry().seed + 1);
  EXPECT_FALSE(state.task(TaskId::transfer(0)).checkpoint)
      << "a checkpoint is of the seed that began it";
  for (std::uint64_t token = 5; token <= 7; ++token) {
    grant(state, TaskId::transfer(0), token, "w1");
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "again"});
  }
  EXPECT_FALSE(wants(actions_for(state, kKeepAll, 1), IntentKind::kReseed))
      << "the recipe allowed one";
}

// Boundary 2 stays, because one piece of it never comes; so captures of block 3 wait for its
// deletion for ever.
TEST(Quarantine, WhatWaitsForADeletionThatAQuarantinedTaskPreventsLeavesTheRunPartial) {
  Geometry geometry = small_geometry();
  geometry.num_layers = 10;  // 5 blocks
  geometry.finetunes = false;
  geometry.evaluates = {};
  State state;
  must(state, RunStarted{geometry, "test"});
  const KeepBoundaries keep_none{.kind = KeepBoundaries::Kind::kNone};
  std::uint64_t token = 0;
  const auto done = [&](const TaskId& id) { complete(state, id, ++token); };
  for (int piece = 0; piece < 2; ++piece) done(TaskId::capture(0, piece));
  done(TaskId::transfer(0));
  done(TaskId::transfer(1));
  done(TaskId::capture(1, 0));
  must(state, Quarantined{TaskId::capture(1, 1), "poison"});
  must(state, BoundaryDropped{1});
  done(TaskId::capture(2, 0));
  ASSERT_TRUE(is_ready(state, state.task(TaskId::capture(3, 0))));
  ASSERT_FALSE(anything_to_grant(state, keep_none));
  const auto intents = actions_for(state, keep_none);
  ASSERT_EQ(intents.size(), 1U);
  EXPECT_EQ(intents[0].kind, IntentKind::kFinish);
  EXPECT_EQ(intents[0].phase, RunPhase::kPartial);
}

TEST(Quarantine, ProgressForgetsEarlierFailures) {
  State state = started_state();
  for (std::uint64_t token = 1; token <= 2; ++token) {
    grant(state, TaskId::transfer(0), token, token == 1 ? "w1" : "w2");
    must(state, TaskFailed{token, storage::ErrorKind::kInternal, "boom"});
  }
  grant(state, TaskId::transfer(0), 3, "w1");
  must(state, CheckpointCommitted{3, 10, file_named("attempts/t3/c")});
  EXPECT_TRUE(state.task(TaskId::transfer(0)).failures.empty());
}

// Its workers come from elsewhere, each under a new name: nobody sees them die.
TEST(Quarantine, SixLeasesInARowThatRanOutGiveTheTaskUp) {
  State state = started_state();
  const TaskId id = TaskId::transfer(0);
  for (std::uint64_t token = 1; token <= 6; ++token) {
    EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine)) << token;
    grant(state, id, token, "elastic-" + std::to_string(token));
    must(state, LeaseRevoked{token, "no heartbeat for 30 s", true});
  }
  EXPECT_TRUE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
  EXPECT_NE(quarantine_reason(state.task(id)).find("6 leases in a row ran out"), std::string::npos);
  EXPECT_NE(quarantine_reason(state.task(id)).find("elastic-6"), std::string::npos);
  must(state, Quarantined{id, "given up"});
  must(state, Retried{id, "asked for", std::nullopt});
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
}

TEST(Quarantine, ProgressForgetsLeasesThatRanOut) {
  State state = started_state();
  std::uint64_t token = 0;
  for (int i = 0; i < 10; ++i) {
    grant(state, TaskId::transfer(0), ++token);
    if (i % 5 == 4) must(state, CheckpointCommitted{token, i, file_named("c")});
    must(state, LeaseRevoked{token, "no heartbeat", true});
    grant(state, TaskId::capture(0, 0), ++token);
    if (i % 5 == 4) {
      must(state, ShardCommitted{token, 0, file_named("s")});
      must(state, FileLost{"s", "test"});
    }
    must(state, LeaseRevoked{token, "no heartbeat", true});
    EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine)) << i;
  }
  EXPECT_EQ(state.task(TaskId::transfer(0)).expiries, 1);
  EXPECT_EQ(state.task(TaskId::capture(0, 0)).expiries, 1);
}

// They do not say whether a lease ran out or its holder was seen dead, and nobody gave up for it.
TEST(Quarantine, RevocationsOfOlderJournalsDoNotCount) {
  State state = started_state();
  for (std::uint64_t token = 1; token <= 10; ++token) {
    grant(state, TaskId::transfer(0), token);
    must(state,
         event_from_json({{"type", "revoked"}, {"token", token}, {"reason", "no heartbeat"}}));
  }
  EXPECT_TRUE(state.index.troubled.empty());
  EXPECT_FALSE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
}

TEST(Quarantine, WhatTheUserMustEditIsNotTriedTwice) {
  State state = started_state();
  grant(state, TaskId::transfer(0), 1);
  must(state, TaskFailed{1, storage::ErrorKind::kUsage, "unsupported"});
  EXPECT_TRUE(wants(actions_for(state, kKeepAll), IntentKind::kQuarantine));
}

// A random walk over events that may or may not apply: the state after every prefix is the fold of
// the accepted ones, through JSON and through a snapshot in the middle, and the index that apply()
// keeps is the one that its records give.
TEST(Replay, GivesTheLiveStateAndItsIndexOverRandomSchedules) {
  for (std::uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto pick = [&random](std::size_t n) { return static_cast<std::size_t>(random() % n); };
    State live = started_state();
    std::vector<nlohmann::json> journal = {event_to_json(small_run())};
    std::optional<nlohmann::json> snapshot;
    std::size_t snapshot_at = 0;
    std::vector<TaskId> ids;
    for (const auto& [id, task] : live.tasks) ids.push_back(id);
    for (int step = 0; step < 300; ++step) {
      const TaskId& id = ids[pick(ids.size())];
      const std::uint64_t token = live.last_token == 0 ? 1 : 1 + pick(live.last_token + 1);
      const std::string name = "f.t" + std::to_string(token) + "." + std::to_string(step);
      const std::vector<Event> choices = {
          Granted{id, live.last_token + 1 + pick(3), "w" + std::to_string(pick(3)), 1, "cpu"},
          ShardCommitted{token, static_cast<int>(pick(2)), file_named(name)},
          CheckpointCommitted{token, step, file_named(name)},
          TaskDone{token, {file_named(name)}, {{"step", step}}},
          TaskFailed{token, storage::ErrorKind::kUnavailable, name},
          TaskReleased{token, name},
          LeaseRevoked{token, name, pick(2) == 0},
          BoundaryDropped{static_cast<int>(1 + pick(2))},
          Recaptured{id, name},
          Quarantined{id, name},
          Retried{id, name, pick(2) == 0 ? std::optional<std::uint64_t>(pick(100)) : std::nullopt},
          FileLost{live.shards[1][pick(2)].file.name, name},
          TermStarted{}};
      const Event& event = choices[pick(choices.size())];
      if (!coordinator::apply(live, event)) journal.push_back(event_to_json(event));
      State counted_anew = live;
      rebuild_index(counted_anew);
      ASSERT_TRUE(live.index == counted_anew.index) << type_of(event) << " at step " << step;
      if (step == 150) {
        snapshot = state_to_json(live);
        snapshot_at = journal.size();
      }
    }
    State replayed;
    for (const nlohmann::json& record : journal)
      must(replayed, event_from_json(nlohmann::json::parse(record.dump())));
    EXPECT_EQ(state_to_json(replayed), state_to_json(live));
    State from_snapshot = state_from_json(nlohmann::json::parse(snapshot->dump()));
    for (std::size_t i = snapshot_at; i < journal.size(); ++i)
      must(from_snapshot, event_from_json(journal[i]));
    EXPECT_EQ(state_to_json(from_snapshot), state_to_json(live));
    EXPECT_EQ(from_snapshot.grants.size(), live.grants.size());
  }
}

TEST(TaskIds, SpellAndReadBackAndRefuseOthers) {
  for (const TaskId& id : {TaskId::capture(3, 12),
                           TaskId::transfer(0),
                           TaskId::assemble(),
                           TaskId::logits(7),
                           TaskId::finetune(),
                           TaskId::evaluate(Subject::kLora),
                           TaskId::evaluate(Subject::kTeacher, 12)}) {
    EXPECT_EQ(task_id_from_string(to_string(id)), id);
  }
  for (const char* text : {"",
                           "capture/b0001",
                           "transfer/b0001/x",
                           "evaluate/",
                           "evaluate/other",
                           "evaluate/lora/x",
                           "evaluate/lora/p1",
                           "evaluate/p01",
                           "nonsense"}) {
    EXPECT_THROW(static_cast<void>(task_id_from_string(text)), storage::Error) << text;
  }
}

TEST(TaskIds, EvaluationsAreInTheOrderOfTheirNamesWhichIsThatOfSnapshots) {
  const TaskId lora = TaskId::evaluate(Subject::kLora);
  const TaskId teacher = TaskId::evaluate(Subject::kTeacher);
  const TaskId transfer = TaskId::evaluate(Subject::kTransfer);
  EXPECT_TRUE(lora < teacher && teacher < transfer);
  EXPECT_TRUE(to_string(lora) < to_string(teacher) && to_string(teacher) < to_string(transfer));
}

TEST(TaskIds, ARunThatEvaluatesSomethingElseIsRefused) {
  nlohmann::json geometry = storage::fields_to_json(*started_state().geometry);
  EXPECT_EQ(storage::fields_from_json<Geometry>(geometry), *started_state().geometry);
  geometry["evaluates"] = {"teacher", "student"};
  EXPECT_THROW(static_cast<void>(storage::fields_from_json<Geometry>(geometry)), storage::Error);
}

}  // namespace
}  // namespace hedgerow::coordinator
