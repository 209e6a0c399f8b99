// Runs CUDA tile code on the host: a threadblock's threads are fibers on one thread of the host, so
// that a collective function sees all lanes of its warp and a barrier all threads of the
// threadblock. What a GPU would leave to chance is drawn from a seed: the order of warps and lanes
// between barriers, so that a missing barrier shows. Shared memory starts as NaN and ends at a page
// that cannot be touched.
//
// Errors of the tile code (lanes of one warp in different collective functions, a barrier that not
// every thread reaches, a misaligned address) are thrown by launch() as std::logic_error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace hedgerow::kernels::cuda::emulation {

struct Grid {
  int x = 1, y = 1, z = 1;
};

// The kernel as one thread of threadblock `index` runs it.
using Kernel = std::function<void(Grid index, void* shared)>;

// Runs all threadblocks, one after another in an order drawn from the seed.
void launch(
    Grid grid, int threads, std::size_t shared_bytes, std::uint64_t seed, const Kernel& kernel);

// For emulated_warp.hpp, inside a kernel.
[[nodiscard]] int current_thread();
void wait_for_threadblock();
// Returns once all 32 lanes have come here with the same name; the last one has called
// combine(slots), slots[lane] being each lane's `slot`.
void wait_for_warp(const char* name, void* slot, void (*combine)(void* const* slots));
[[noreturn]] void fail(const char* what);
// The calling thread's copies that were not waited for.
struct PendingCopy {
  void* to;
  const void* from;
  bool inside;
};
void add_copy(PendingCopy copy);
void commit_copies();
void finish_copies(int pending_groups);

}  // namespace hedgerow::kernels::cuda::emulation
