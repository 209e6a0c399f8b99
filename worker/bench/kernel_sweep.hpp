// `bench kernels`: walks a sweep and gives its measurements out as JSON objects, each as soon as it
// is there (README.md has their fields). At each length the hybrid's variants take turns with the
// fastest softmax backend, a few variants at a time. What does not fit into memory or is refused by
// a kernel is told and the sweep goes on.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>

#include "coordinator/bench/kernel_sweep.hpp"
#include "worker/bench/device_peaks.hpp"

namespace hedgerow::worker::bench {

struct SweepObserver {
  std::function<void(const nlohmann::json& object)> on_object;
  std::function<void(double share, const std::string& note)> on_progress;
};

// "device": what it is and what it reaches.
[[nodiscard]] nlohmann::json describe_device(const at::Device& device, const DevicePeaks& peaks);

// "measured", "left_out" and "refused", by heads, direction and length.
void run_sweep(const measure::KernelSweep& sweep,
               const at::Device& device,
               std::uint64_t memory_bytes,
               const DevicePeaks& peaks,
               const SweepObserver& observer);

}  // namespace hedgerow::worker::bench
