#include "coordinator/dispatch/leases.hpp"

#include <gtest/gtest.h>

#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {
namespace {

using std::chrono::seconds;

wire::Progress at_step(std::int64_t step, const std::string& phase = "training") {
  wire::Progress progress;
  progress.phase = phase;
  progress.step = step;
  return progress;
}

TEST(Leases, OneEndsAfterItsTermUnlessItIsRenewed) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1);
  leases.grant(2);
  clock.advance(seconds(29));
  EXPECT_TRUE(leases.due().empty());
  EXPECT_TRUE(leases.renew(2));
  clock.advance(seconds(1));
  const auto due = leases.due();
  ASSERT_EQ(due.size(), 1U);
  EXPECT_EQ(due[0].token, 1U);
  EXPECT_FALSE(due[0].hung);
  EXPECT_EQ(due[0].reason, "no heartbeat for 30 s");
  leases.end(1);
  EXPECT_FALSE(leases.renew(1)) << "an ended lease does not come back";
}

TEST(Leases, AStartingProcessHasALongerFirstTermUntilItIsHeardOf) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1, seconds(300));
  clock.advance(seconds(200));
  EXPECT_TRUE(leases.due().empty());
  leases.renew(1);
  clock.advance(seconds(29));
  EXPECT_TRUE(leases.due().empty());
  clock.advance(seconds(1));
  EXPECT_EQ(leases.due().size(), 1U)
      << "died after it came up, and was waited for as one that starts";
}

// Heartbeats come, steps do not.
TEST(Leases, ATaskThatStandsStillFor120SecondsHangs) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1);
  leases.note_progress(1, at_step(5));
  for (int beat = 0; beat < 23; ++beat) {
    clock.advance(seconds(5));
    leases.renew(1);
    leases.note_progress(1, at_step(5));
    EXPECT_TRUE(leases.due().empty()) << beat;
  }
  clock.advance(seconds(5));
  leases.renew(1);
  ASSERT_EQ(leases.due().size(), 1U);
  EXPECT_TRUE(leases.due()[0].hung);
  EXPECT_EQ(leases.due()[0].reason, "no progress for 120 s, training at step 5");
}

TEST(Leases, SlowStepsGetTenTimesTheirMedian) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1);
  for (int step = 0; step <= 5; ++step) {
    leases.note_progress(1, at_step(step));
    clock.advance(seconds(20));
    leases.renew(1);
  }
  EXPECT_EQ(leases.progress_timeout(1), seconds(200));
  leases.note_progress(1, at_step(6));
  clock.advance(seconds(199));
  leases.renew(1);
  EXPECT_TRUE(leases.due().empty());
  clock.advance(seconds(1));
  EXPECT_EQ(leases.due().size(), 1U);
}

TEST(Leases, OnlyTheLastStepsCountForTheMedian) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1);
  int step = 0;
  for (const auto& [times, takes] : {std::pair{40, seconds(20)}, std::pair{31, seconds(30)}}) {
    for (int i = 0; i < times; ++i) {
      leases.note_progress(1, at_step(step++));
      clock.advance(takes);
      leases.renew(1);
    }
  }
  leases.note_progress(1, at_step(step));
  EXPECT_EQ(leases.progress_timeout(1), seconds(300));
}

TEST(Leases, LoadingThatReportsItselfIsProgress) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(1);
  for (int layer = 0; layer < 10; ++layer) {
    wire::Progress loading = at_step(0, "loading");
    loading.tokens = layer;
    leases.note_progress(1, loading);
    clock.advance(seconds(100));
    leases.renew(1);
    EXPECT_TRUE(leases.due().empty()) << layer;
  }
}

}  // namespace
}  // namespace hedgerow::coordinator
