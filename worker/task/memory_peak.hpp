// How much memory a task took at most: what a plan's estimate is compared with, and what tells a
// user how much larger the next run's blocks may be. Measured by the caller of a task, so that no
// task need know of it.
#pragma once

#include <c10/core/Device.h>

#include "coordinator/wire/task.hpp"

namespace hedgerow::worker {

// From its construction on; one at a time in a process, because the counters are the process's.
class MemoryPeakMeter {
 public:
  explicit MemoryPeakMeter(const at::Device& device);
  // Cheap enough for every report: it asks LibTorch's counters, not the driver.
  [[nodiscard]] wire::PeakMemory peak() const;

 private:
  at::Device device_;
};

}  // namespace hedgerow::worker
