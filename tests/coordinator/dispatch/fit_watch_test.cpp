#include "coordinator/dispatch/fit_watch.hpp"

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

class FitWatchTest : public ::testing::Test {
 protected:
  std::vector<TaskId> look(const std::vector<WorkerView>& connected, std::chrono::seconds at) {
    return watch_.look(state_, connected, TimePoint{} + at);
  }

  const State state_ = started_state();
  const WorkerView small_{"node-0", 300 * kMiB, -1}, middling_{"node-1", 500 * kMiB, -1};
  const WorkerView large_{"node-2", 1000 * kMiB, -1};
  FitWatch watch_{kNeeds, {"node-0", "node-1"}, /*needs_guests=*/false};
};

TEST_F(FitWatchTest, ATaskThatFitsNobodyIsShownWithTheArithmeticAfterAWhile) {
  FitWatch open(kNeeds, {}, /*needs_guests=*/true);
  static_cast<void>(open.look(state_, {small_, middling_}, TimePoint{}));
  EXPECT_THAT(open.shown(), IsEmpty()) << "a larger worker may still be on its way";
  EXPECT_THAT(open.look(state_, {small_, middling_}, TimePoint{} + kFitPatience), IsEmpty())
      << "and somebody may still start one";
  ASSERT_EQ(open.shown().size(), 1U);
  EXPECT_THAT(open.shown().at(TaskId::transfer(0)),
              AllOf(HasSubstr("needs 900 MiB"),
                    HasSubstr("(node-1) has 500 MiB"),
                    HasSubstr("start a worker")));
  EXPECT_THAT(open.warnings(), ElementsAre(HasSubstr("transfer/b0000 needs 900 MiB")));
  static_cast<void>(open.look(state_, {small_, large_}, TimePoint{} + 2 * kFitPatience));
  EXPECT_THAT(open.shown(), IsEmpty()) << "it came";
}

TEST_F(FitWatchTest, ItIsGivenUpWhenAllWorkersOfTheRunAreThereAndNoOther) {
  EXPECT_THAT(look({small_}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({small_}, kFitPatience), IsEmpty()) << "node-1 is still to come";
  const WorkerView guest{"guest", 100 * kMiB, -1};
  EXPECT_THAT(look({small_, guest}, kFitPatience), IsEmpty()) << "others join this run";
  EXPECT_THAT(look({small_, middling_}, kFitPatience), ElementsAre(TaskId::transfer(0)));
}

TEST_F(FitWatchTest, AWorkerOfUnknownMemoryTakesEverything) {
  const WorkerView unknown{"node-1", 0, -1};
  EXPECT_THAT(look({small_, unknown}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({small_, unknown}, 2 * kFitPatience), IsEmpty());
  EXPECT_THAT(watch_.shown(), IsEmpty());
}

TEST_F(FitWatchTest, WithoutAnyWorkerNothingIsSaidOfMemory) {
  EXPECT_THAT(look({}, std::chrono::seconds(0)), IsEmpty());
  EXPECT_THAT(look({}, 2 * kFitPatience), IsEmpty());
  EXPECT_THAT(watch_.shown(), IsEmpty());
}

TEST_F(FitWatchTest, ARunThatStartsNoWorkersSaysThatNoneIsThere) {
  FitWatch open(kNeeds, {}, /*needs_guests=*/true);
  static_cast<void>(open.look(state_, {}, TimePoint{}));
  EXPECT_THAT(open.shown(), IsEmpty()) << "they may be on their way";
  EXPECT_THAT(open.look(state_, {}, TimePoint{} + kGuestPatience), IsEmpty());
  EXPECT_THAT(open.warnings(), ElementsAre(HasSubstr("none is connected; 'hedgerow worker")));
  FitWatch launching(kNeeds, {}, /*needs_guests=*/false);
  static_cast<void>(launching.look(state_, {}, TimePoint{}));
  static_cast<void>(launching.look(state_, {}, TimePoint{} + kGuestPatience));
  EXPECT_THAT(launching.shown(), IsEmpty()) << "srun starts them, and the queue may be long";
  static_cast<void>(open.look(state_, {large_}, TimePoint{} + 2 * kGuestPatience));
  EXPECT_THAT(open.shown(), IsEmpty()) << "one came";
}

class FitAtTheDesk : public RunFixture {};

// What a resume on a smaller machine once did: wait for ever, without a word.
TEST_F(FitAtTheDesk, ARunWhoseOwnWorkersAreTooSmallEndsAsPartialAndSaysWhy) {
  FakeClock clock;
  DispatcherConfig config;
  config.version = "1";
  config.needs = {.capture = 900 * kMiB, .transfer = 900 * kMiB, .evaluate = 900 * kMiB};
  config.own_workers = {"w1"};
  Dispatcher desk(layout_, State{}, open_journal(), clock, config);
  desk.record(RunStarted{geometry_, "test"});
  wire::Hello hello;
  hello.worker = {"w1", 1};
  hello.version = "1";
  hello.memory_bytes = 300 * kMiB;
  desk.receive("peer", wire::encode(hello));
  desk.tick();
  EXPECT_EQ(phase_of(desk.state()), RunPhase::kRunning);
  clock.advance(kFitPatience);
  desk.tick();
  EXPECT_EQ(phase_of(desk.state()), RunPhase::kPartial);
  static_cast<void>(desk.flush());
  EXPECT_THAT(replayed().task(TaskId::transfer(0)).reason,
              AllOf(HasSubstr("needs 900 MiB"), HasSubstr("(w1) has 300 MiB")));
}

}  // namespace
}  // namespace hedgerow::coordinator
