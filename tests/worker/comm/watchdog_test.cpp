#include "worker/comm/watchdog.hpp"

#include <gtest/gtest.h>

#include <latch>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

TEST(WatchdogDeathTest, ACallThatNeverComesBackEndsTheProcessAndIsNamed) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Watchdog watchdog("rank 0 of 2: MPI_Finalize", std::chrono::milliseconds(20));
        std::latch never(1);
        never.wait();
      },
      testing::ExitedWithCode(static_cast<int>(storage::ExitCode::kEnvironment)),
      "rank 0 of 2: MPI_Finalize did not complete within 20 ms");
}

TEST(Watchdog, ACallThatComesBackIsNotWaitedFor) {
  const auto begin = std::chrono::steady_clock::now();
  { const Watchdog watchdog("quick", std::chrono::hours(1)); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace hedgerow::worker
