#include "storage/fault_point.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace hedgerow::storage {
namespace {

TEST(FaultPointDeathTest, KillsAtTheNamedPlaceAndAtTheVisitAskedForOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("HEDGEROW_FAULT", "journal.committed:3", 1);
  EXPECT_EXIT(
      {
        fault_point("journal.committed");
        fault_point("journal.committed");
        fault_point("another.place");
        std::fputs("still alive\n", stderr);
        fault_point("journal.committed");
      },
      testing::KilledBySignal(SIGKILL),
      "still alive");
  unsetenv("HEDGEROW_FAULT");
}

TEST(FaultPointDeathTest, OnlyTheFirstProcessDiesWhenAskedForOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const std::string once = testing::TempDir() + "fault_point_once." + std::to_string(getpid());
  setenv("HEDGEROW_FAULT", "journal.committed:1", 1);
  // The dying child runs this body again from the start: it must keep its parent's path.
  setenv("HEDGEROW_FAULT_ONCE", once.c_str(), 0);
  EXPECT_EXIT(fault_point("journal.committed"), testing::KilledBySignal(SIGKILL), "");
  fault_point("journal.committed");
  unlink(once.c_str());
  unsetenv("HEDGEROW_FAULT");
  unsetenv("HEDGEROW_FAULT_ONCE");
}

TEST(FaultPoint, DoesNothingWhenNobodyAsksForIt) { fault_point("journal.committed"); }

}  // namespace
}  // namespace hedgerow::storage
