// The device of the current thread, and a stream of it, without a header of CUDA's.
#pragma once

#include <cstddef>

namespace hedgerow::kernels::cuda {

using Stream = void*;  // a cudaStream_t

struct DeviceLimits {
  int multiprocessors = 0;
  std::size_t shared_bytes = 0;  // of one threadblock
};
[[nodiscard]] DeviceLimits device_limits();

}  // namespace hedgerow::kernels::cuda
