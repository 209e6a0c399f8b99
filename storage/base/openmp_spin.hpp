// How long a thread of OpenMP spins at a barrier before it sleeps. LibTorch's pool is libgomp's,
// whose threads spin for milliseconds by default. Where another process needs the core, a thread
// that spins keeps the one that it waits for from running. worker/README.md ("Threads") has the
// measurements behind kOpenMpSpinCount.
#pragma once

namespace hedgerow::storage {

inline constexpr const char* kOpenMpSpinCount = "2000";  // iterations of libgomp's loop

// Sets GOMP_SPINCOUNT in the environment, for the programs that this process starts: libgomp reads
// it once, before main. Does nothing where GOMP_SPINCOUNT or OMP_WAIT_POLICY is set. Returns
// whether it set it. Call it while the process has one thread.
bool limit_openmp_spinning();

}  // namespace hedgerow::storage
