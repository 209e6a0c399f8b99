#include "worker/device/large_blocks.hpp"

#include <cstdlib>  // defines __GLIBC__ where it is glibc

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace hedgerow::worker {

#ifdef __GLIBC__

void keep_large_blocks() {
  constexpr int kLargestKept = 1 << 30, kOlderLimit = 1 << 25;  // bytes
  // Refused both times, the threshold would stand still at its small start once another is set.
  if (mallopt(M_MMAP_THRESHOLD, kLargestKept) == 0 && mallopt(M_MMAP_THRESHOLD, kOlderLimit) == 0)
    return;
  mallopt(M_TRIM_THRESHOLD, -1);  // never by itself
}

void return_large_blocks() { mallopt(M_MMAP_THRESHOLD, 1 << 20); }

void release_kept_blocks() { malloc_trim(0); }

#else

void keep_large_blocks() {}
void return_large_blocks() {}
void release_kept_blocks() {}

#endif

}  // namespace hedgerow::worker
