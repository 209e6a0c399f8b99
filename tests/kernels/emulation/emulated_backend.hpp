// Starts a kernel (*_kernels.cuh) on the host: its own code, run by threadblock.hpp. The seed moves
// from launch to launch, so that no result may depend on the order of warps.
#pragma once

#include <atomic>

#include "kernels/cuda/hybrid/hybrid_launch.hpp"
#include "kernels/cuda/tile/shapes.cuh"
#include "tests/kernels/emulation/threadblock.hpp"

namespace hedgerow::kernels::cuda {

struct EmulatedBackend {
  template <typename Kernel>
  static void run(const typename Kernel::Arguments& arguments, Stream /*stream*/) {
    static std::atomic<std::uint64_t> seed{1};
    const Grid grid = Kernel::grid(arguments);
    if (grid.y > kMostRows || grid.z > kMostRows) {
      emulation::fail("a grid that CUDA does not launch");
    }
    if (sizeof(typename Kernel::Shared) > device_limits().shared_bytes) {
      emulation::fail("a threadblock that needs more shared memory than the device has");
    }
    emulation::launch({grid.x, grid.y, grid.z},
                      Kernel::kThreads,
                      sizeof(typename Kernel::Shared),
                      seed++,
                      [&](emulation::Grid at, void* shared) {
                        Kernel::run(arguments,
                                    *static_cast<typename Kernel::Shared*>(shared),
                                    Grid{at.x, at.y, at.z});
                      });
  }
};

}  // namespace hedgerow::kernels::cuda
