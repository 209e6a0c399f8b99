#include "storage/faults/fault_point.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "storage/faults/fault_beacon.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

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

TEST(FaultPointDeathTest, ABlockThatIsNamedIsTheOnlyOneThatCounts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("HEDGEROW_FAULT", "transfer.step@1:2", 1);
  EXPECT_EXIT(
      {
        for (const int block : {0, 1, 2, 0}) fault_point("transfer.step", block);
        std::fputs("still alive\n", stderr);
        fault_point("transfer.step", 1);
      },
      testing::KilledBySignal(SIGKILL),
      "still alive");
  unsetenv("HEDGEROW_FAULT");
}

TEST(FaultPointDeathTest, AHangIsOfOneThreadAlone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("HEDGEROW_FAULT", "transfer.step", 1);
  setenv("HEDGEROW_FAULT_ACTION", "hang", 1);
  EXPECT_EXIT(
      {
        std::atomic<bool> here = false;
        std::atomic<bool> passed = false;
        std::thread([&] {
          here = true;
          fault_point("transfer.step");
          passed = true;
        }).detach();
        while (!here) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::_Exit(passed ? 1 : 7);
      },
      testing::ExitedWithCode(7),
      "");
  unsetenv("HEDGEROW_FAULT");
  unsetenv("HEDGEROW_FAULT_ACTION");
}

TEST(FaultPoint, DoesNothingWhenNobodyAsksForIt) { fault_point("journal.committed"); }

// A storm's view of this process, as tests/faults/beacons.py has it.
class Beacon : public ::testing::Test {
 protected:
  Beacon() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    // The dying child runs this again from the start: it must keep its parent's directory.
    setenv("HEDGEROW_STORM", directory_.path().c_str(), 0);
  }
  ~Beacon() override { unsetenv("HEDGEROW_STORM"); }

  // By the process itself, which is its own tester here: it comes by, so that it has a page.
  static void wish(const std::string& place, std::uint32_t skip, std::uint32_t delay_us) {
    fault_point("begin");
    FaultBeacon written;
    std::copy(place.begin(), place.end(), written.wishes[0].place.begin());
    written.wishes[0].skip = skip;
    written.wishes[0].delay_us = delay_us;
    written.num_wishes = 1;
    written.armed = 1;
    const char* bytes = reinterpret_cast<const char*>(&written);
    const std::size_t begin = offsetof(FaultBeacon, armed);
    File file = File::open_update(std::string(std::getenv("HEDGEROW_STORM")) + "/" +
                                  std::to_string(getpid()) + ".beacon");
    file.write_at(std::as_bytes(std::span(bytes + begin, sizeof(FaultBeacon) - begin)), begin);
    file.close();
  }

  // What a process shows that is killed over this work, having `said` as much on stderr.
  template <typename Work>
  [[nodiscard]] std::string place_of_death(Work work, const std::string& said = "") const {
    EXPECT_EXIT(work(), testing::KilledBySignal(SIGKILL), said);
    std::string text;
    for (const auto& entry : std::filesystem::directory_iterator(directory_.path()))
      text += read_text(entry.path()).substr(offsetof(FaultBeacon, place), kPlaceBytes).c_str();
    return text;
  }

  tests::TemporaryDirectory directory_;
};

using BeaconDeathTest = Beacon;

TEST_F(BeaconDeathTest, OutlivesItsProcessAndTellsTheStretchOfWorkThatItDiedIn) {
  const std::string place = place_of_death([] {
    const FaultScope outer("task");
    { const FaultScope inner("task.step"); }
    std::raise(SIGKILL);
  });
  EXPECT_EQ(place, "task");
}

TEST_F(BeaconDeathTest, AWishedKillComesAtItsVisitAndNotBefore) {
  const auto work = [] {
    wish("task.step", 1, 0);
    fault_point("task.step");
    std::fputs("still alive\n", stderr);
    fault_point("elsewhere");
    fault_point("task.step");
  };
  EXPECT_EQ(place_of_death(work, "still alive"), "task.step");
}

TEST_F(BeaconDeathTest, AWishedKillMayComeSomeMicrosecondsLaterWhateverTheProcessDoesThen) {
  const std::string place = place_of_death([] {
    wish("task.step", 0, 2000);
    fault_point("task.step");
    for (int step = 0;; ++step) fault_step(step);
  });
  EXPECT_EQ(place, "task.step");
}

}  // namespace
}  // namespace hedgerow::storage
