#include "coordinator/dispatch/unschedulable_tasks.hpp"

#include <gmock/gmock.h>

#include "coordinator/dispatch/dispatcher.hpp"
#include "tests/coordinator/run_fixture.hpp"
#include "tests/coordinator/state_fixture.hpp"
#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::uint64_t kMiB = 1ULL << 20;
// The small run's captures fit everywhere, its evaluations too.
constexpr MemoryNeeds kNeeds{.capture = 10 * kMiB, .transfer = 900 * kMiB, .evaluate = 10 * kMiB};

class UnschedulableTasksTest : public ::testing::Test {
 protected:
  std::vector<TaskId> look(const std::vector<WorkerView>& connected, std::chrono::seconds at) {
    return watch_.look(state_, connected, TimePoint{} + at);
  }

  const State state_ = started_state();
  const WorkerView small_{"node-0", 300 * kMiB, -1}, middling_{"node-1", 500 * kMiB, -1};
  const WorkerView large_{"node-2", 1000 * kMiB, -1};
  UnschedulableTasks watch_{kNeeds, {"node-0", "node-1"}, /*needs_external_workers=*/false};
};

TEST_F(UnschedulableTasksTest, ATaskThatFitsNobodyIsShownWithTheArithmeticAfterAWhile) {
  UnschedulableTasks open(kNeeds, {}, /*needs_external_workers=*/true);
  static_cast<void>(open.look(state_, {small_, middling_}, TimePoint{}));
  EXPECT_THAT(open.shown(), IsEmpty()) << "a larger worker may still be on its way";
  EXPECT_THAT(open.look(state_, {small_, middling_}, TimePoint{} + kUnschedulableTimeout),
              IsEmpty())
      << "and somebody may still start one";
  ASSERT_EQ(open.shown().size(), 1U);
  EXPECT_THAT(open.shown().at(TaskId::transfer(0)),
              AllOf(HasSubstr("needs 900 MiB"),
                    HasSubstr("(node-1) has 500 MiB"),
                    HasSubstr("start a worker")));
  EXPECT_THAT(open.warnings(), ElementsAre(HasSubstr("transfer/b0000 needs 900 MiB")));
  static_cast<void>(open.look(state_, {small_, large_}, TimePoint{} + 2 * kUnschedulableTimeout));
  EXPECT_THAT(open.shown(), IsEmpty()) << "it came";
}

TEST_F(UnschedulableTasksTest, ItIsGivenUpWhenAllWorkersOfTheRunAreThereAndNoOther) {
  EXPECT_THAT(look({small_}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({small_}, kUnschedulableTimeout), IsEmpty()) << "node-1 is still to come";
  const WorkerView external{"external", 100 * kMiB, -1};
  EXPECT_THAT(look({small_, external}, kUnschedulableTimeout), IsEmpty()) << "others join this run";
  EXPECT_THAT(look({small_, middling_}, kUnschedulableTimeout), ElementsAre(TaskId::transfer(0)));
}

TEST_F(UnschedulableTasksTest, AWorkerOfUnknownMemoryTakesEverything) {
  const WorkerView unknown{"node-1", 0, -1};
  EXPECT_THAT(look({small_, unknown}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({small_, unknown}, 2 * kUnschedulableTimeout), IsEmpty());
  EXPECT_THAT(watch_.shown(), IsEmpty());
}

TEST_F(UnschedulableTasksTest, WithoutAnyWorkerNothingIsSaidOfMemory) {
  EXPECT_THAT(look({}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({}, 2 * kUnschedulableTimeout), IsEmpty());
  EXPECT_THAT(watch_.shown(), IsEmpty());
}

TEST_F(UnschedulableTasksTest, ARunThatStartsNoWorkersSaysThatNoneIsThere) {
  UnschedulableTasks open(kNeeds, {}, /*needs_external_workers=*/true);
  static_cast<void>(open.look(state_, {}, TimePoint{}));
  EXPECT_THAT(open.shown(), IsEmpty()) << "they may be on their way";
  EXPECT_THAT(open.look(state_, {}, TimePoint{} + kNoWorkerTimeout), IsEmpty());
  EXPECT_THAT(open.warnings(), ElementsAre(HasSubstr("none is connected; 'hedgerow worker")));
  UnschedulableTasks launching(kNeeds, {}, /*needs_external_workers=*/false);
  static_cast<void>(launching.look(state_, {}, TimePoint{}));
  static_cast<void>(launching.look(state_, {}, TimePoint{} + kNoWorkerTimeout));
  EXPECT_THAT(launching.shown(), IsEmpty()) << "srun starts them, and the queue may be long";
  static_cast<void>(open.look(state_, {large_}, TimePoint{} + 2 * kNoWorkerTimeout));
  EXPECT_THAT(open.shown(), IsEmpty()) << "one came";
}

class WorkersThatFitNothing : public RunFixture {};

// What a resume on a smaller machine once did: wait for ever, without a word.
TEST_F(WorkersThatFitNothing, ARunWhoseOwnWorkersAreTooSmallEndsAsPartialAndSaysWhy) {
  FakeClock clock;
  DispatcherConfig config;
  config.version = "1";
  config.needs = {.capture = 900 * kMiB, .transfer = 900 * kMiB, .evaluate = 900 * kMiB};
  config.own_workers = {"w1"};
  Dispatcher dispatcher(layout_, State{}, open_journal(), clock, config);
  dispatcher.record(RunStarted{geometry_, "test"});
  wire::Hello hello;
  hello.worker = {"w1", 1};
  hello.version = "1";
  hello.memory_bytes = 300 * kMiB;
  dispatcher.receive("peer", wire::encode(hello));
  dispatcher.tick();
  EXPECT_EQ(phase_of(dispatcher.state()), RunPhase::kRunning);
  clock.advance(kUnschedulableTimeout);
  dispatcher.tick();
  EXPECT_EQ(phase_of(dispatcher.state()), RunPhase::kPartial);
  static_cast<void>(dispatcher.flush());
  EXPECT_THAT(replayed().task(TaskId::transfer(0)).reason,
              AllOf(HasSubstr("needs 900 MiB"), HasSubstr("(w1) has 300 MiB")));
}

}  // namespace
}  // namespace hedgerow::coordinator
