#include "worker/task/memory_peak.hpp"

#include "coordinator/machine/memory.hpp"
#include "worker/device/cuda_device.hpp"

namespace hedgerow::worker {

MemoryPeakMeter::MemoryPeakMeter(const at::Device& device) : device_(device) {
  machine::reset_resident_peak();
  if (device_.is_cuda()) cuda::reset_peaks(device_);
}

wire::PeakMemory MemoryPeakMeter::peak() const {
  wire::PeakMemory peak{.host_bytes = machine::resident_memory().peak};
  if (!device_.is_cuda()) return peak;
  const cuda::Peaks on_device = cuda::peaks(device_);
  peak.device_bytes = on_device.allocated;
  peak.device_reserved_bytes = on_device.reserved;
  return peak;
}

}  // namespace hedgerow::worker
