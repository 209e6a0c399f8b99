// What is left of a log that somebody tries to fill.
#include "coordinator/wire/log_limit.hpp"

#include <gmock/gmock.h>

#include "tests/support/fake_clock.hpp"

namespace hedgerow::wire {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

class LogLimitTest : public ::testing::Test {
 protected:
  // How many of so many lines are said.
  int said(const std::string& subject, int lines) {
    int count = 0;
    for (int i = 0; i < lines; ++i) count += limit_.admits(subject, clock_.now()) ? 1 : 0;
    return count;
  }
  std::vector<std::string> left_out() { return limit_.left_out(clock_.now()); }

  coordinator::FakeClock clock_;
  LogLimit limit_;
};

TEST_F(LogLimitTest, AFewLinesAMinuteAreSaidAndTheRestIsCountedOnce) {
  EXPECT_EQ(said("messages from 10.0.0.7", 30'000), 3);
  clock_.advance(seconds(59));
  EXPECT_EQ(said("messages from 10.0.0.7", 1), 0);
  EXPECT_THAT(left_out(), IsEmpty()) << "the minute is not over";
  clock_.advance(seconds(1));
  EXPECT_THAT(
      left_out(),
      ElementsAre("left out 29998 more lines about messages from 10.0.0.7 within a minute"));
  EXPECT_THAT(left_out(), IsEmpty());
  EXPECT_EQ(said("messages from 10.0.0.7", 2), 2) << "the next minute begins anew";
  clock_.advance(minutes(1));
  EXPECT_THAT(left_out(), IsEmpty()) << "all of them were said";
}

TEST_F(LogLimitTest, OnesSilenceIsNotAnothers) {
  EXPECT_EQ(said("a", 10), 3);
  EXPECT_EQ(said("b", 1), 1);
  EXPECT_THAT(limit_.left_out(LogLimit::Time::max()),
              ElementsAre("left out 7 more lines about a within a minute"))
      << "at the end of all, also of minutes that are not over";
}

TEST_F(LogLimitTest, WhoeverChoosesSubjectsFillsNeitherLogNorMemory) {
  int lines = 0;
  for (int i = 0; i < 10'000; ++i) lines += said("peer " + std::to_string(i), 1);
  EXPECT_EQ(lines, static_cast<int>(LogLimit::kSubjectsAMinute) + LogLimit::kLinesAMinute);
  clock_.advance(minutes(1));
  EXPECT_THAT(left_out(), ElementsAre("left out 9981 more lines about others within a minute"));
}

}  // namespace
}  // namespace hedgerow::wire
