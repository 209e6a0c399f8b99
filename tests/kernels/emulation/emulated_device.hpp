// The shared memory that the emulated device has, for tests of what a smaller card runs and what it
// is refused. EmulatedBackend launches no threadblock that needs more.
#pragma once

#include <cstddef>

namespace hedgerow::kernels::cuda::emulation {

inline constexpr std::size_t kSharedBytes = std::size_t{227} << 10;  // of an H100

// The device has `bytes` a threadblock while this lives. One at a time, and no launch beside it.
class SharedBytesLimit {
 public:
  explicit SharedBytesLimit(std::size_t bytes);
  ~SharedBytesLimit();
  SharedBytesLimit(const SharedBytesLimit&) = delete;
  SharedBytesLimit& operator=(const SharedBytesLimit&) = delete;
};

}  // namespace hedgerow::kernels::cuda::emulation
