// What this device reaches at its best, measured in the same run: the ceilings that the kernels'
// GB/s and TFLOP/s are shares of.
#pragma once

#include <c10/core/Device.h>

#include "coordinator/bench/kernel_sweep.hpp"

namespace hedgerow::worker::bench {

struct DevicePeaks {
  double copy_bytes_per_second = 0;  // of a copy far larger than any cache, read and written
  double bf16_flops = 0;             // of the best of a few square products, each dtype's own
  double fp32_flops = 0;
  // What a kernel with inputs of that dtype is held against. bf16 values may be multiplied in fp32
  // without loss, so where the processor is faster at that (no AMX), that is the ceiling.
  [[nodiscard]] double flops(measure::BenchDtype dtype) const;
};

[[nodiscard]] DevicePeaks measure_peaks(const at::Device& device);

}  // namespace hedgerow::worker::bench
