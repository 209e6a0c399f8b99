// How fast an attempt is, by its reports.
#include "coordinator/dispatch/speed.hpp"

#include <gtest/gtest.h>

#include "coordinator/dispatch/leases.hpp"
#include "tests/support/fake_clock.hpp"

namespace hedgerow::coordinator {
namespace {

wire::Progress report(const std::string& phase, std::int64_t step, double seconds) {
  wire::Progress progress;
  progress.phase = phase;
  progress.step = step;
  progress.seconds = seconds;
  progress.tokens = 100 * step;
  return progress;
}

TEST(SpeedMeterTest, CountsStepsBetweenReportsAndNoLoading) {
  SpeedMeter meter;
  meter.note(report("loading", 3, 8.0));
  meter.note(report("loading", 4, 10.0));
  EXPECT_EQ(meter.speed(), std::nullopt);
  meter.note(report("training", 0, 11.0));
  EXPECT_EQ(meter.speed(), std::nullopt) << "no step is finished yet";
  meter.note(report("training", 0, 12.9));
  EXPECT_EQ(meter.speed(), std::nullopt);
  meter.note(report("training", 2, 15.0));
  EXPECT_EQ(meter.speed(), (Speed{2.0, 50.0}));
  meter.note(report("training", 2, 19.0));
  EXPECT_EQ(meter.speed(), (Speed{2.0, 50.0})) << "a step that is not finished tells nothing";
}

TEST(SpeedMeterTest, AnAttemptThatGoesOnFromACheckpointIsMeasuredByWhatItDoesItself) {
  SpeedMeter meter;
  meter.note(report("training", 30, 700.0));
  EXPECT_EQ(meter.speed(), std::nullopt);
  meter.note(report("training", 34, 702.0));
  EXPECT_EQ(meter.speed(), (Speed{0.5, 200.0}));
}

TEST(SpeedMeterTest, WhatWasMinutesAgoIsForgotten) {
  SpeedMeter meter;
  double seconds = 0.0;
  std::int64_t step = 0;
  meter.note(report("training", step, seconds));
  for (int i = 0; i < 20; ++i) meter.note(report("training", ++step, seconds += 10.0));
  EXPECT_EQ(meter.speed(), (Speed{10.0, 10.0}));
  for (int i = 0; i < 70; ++i) meter.note(report("training", step += 2, seconds += 2.0));
  EXPECT_EQ(meter.speed(), (Speed{1.0, 100.0})) << "another job on the machine has ended";
}

TEST(SpeedOfAResult, IsThereWhereItsWorkerSaysIt) {
  EXPECT_EQ(speed_of({{"steps", 60}, {"seconds", 90.0}, {"tokens_per_second", 512.0}}),
            (Speed{1.5, 512.0}));
  EXPECT_EQ(speed_of({{"tokens_per_second", 512.0}}), (Speed{0.0, 512.0}));
  EXPECT_EQ(speed_of({{"tokens_per_second", "fast"}}), std::nullopt);
  EXPECT_EQ(speed_of(nlohmann::json::array()), std::nullopt);
}

TEST(SpeedMeterTest, ALeaseKnowsTheSpeedOfItsAttempt) {
  FakeClock clock;
  Leases leases(clock);
  leases.grant(7);
  leases.note_progress(7, report("capturing", 4, 1.0));
  leases.note_progress(7, report("capturing", 8, 2.0));
  EXPECT_EQ(leases.speed(7), (Speed{0.25, 400.0}));
  EXPECT_EQ(leases.speed(8), std::nullopt);
}

}  // namespace
}  // namespace hedgerow::coordinator
