#include "storage/fault_point.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

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

TEST(FaultPoint, DoesNothingWhenNobodyAsksForIt) { fault_point("journal.committed"); }

}  // namespace
}  // namespace hedgerow::storage
