#include "worker/task/memory_peak.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

#include "coordinator/machine/memory.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::size_t kMany = 64U << 20U;

void touch_and_forget() {
  void* pages = ::mmap(nullptr, kMany, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  std::memset(pages, 1, kMany);
  ASSERT_EQ(::munmap(pages, kMany), 0);
}

TEST(MemoryPeak, IsWhatWasTakenAtMostAndNotWhatIsHeldNow) {
  const MemoryPeakMeter meter(at::kCPU);
  const std::uint64_t before = machine::resident_memory().now;
  ASSERT_GT(before, 0U);
  touch_and_forget();
  const wire::PeakMemory peak = meter.peak();
  EXPECT_GE(peak.host_bytes, before + kMany * 9 / 10);
  EXPECT_EQ(peak.device_bytes, 0U) << "the CPU is no device of its own";
}

// A worker runs one task after the other; each has its own peak.
TEST(MemoryPeak, ANewMeterForgetsWhatTheLastTaskTook) {
  const MemoryPeakMeter first(at::kCPU);
  touch_and_forget();
  const std::uint64_t largest = first.peak().host_bytes;
  machine::reset_resident_peak();
  if (machine::resident_memory().peak >= largest)
    GTEST_SKIP() << "this system does not let a process reset its peak (/proc/self/clear_refs)";
  touch_and_forget();
  EXPECT_LT(MemoryPeakMeter(at::kCPU).peak().host_bytes, largest - kMany / 2);
}

}  // namespace
}  // namespace hedgerow::worker
