// The launch headers of kernels/cuda/ on the host: the kernels' own code, run by
// threadblock.hpp. The seed moves from launch to launch, so that no result may depend on the order
// of warps.
#include <atomic>

#include "kernels/cuda/cross_entropy_kernels.cuh"
#include "kernels/cuda/hybrid_kernels.cuh"
#include "kernels/cuda/stream.hpp"
#include "kernels/cuda/transfer_kernels.cuh"
#include "tests/kernels/emulation/threadblock.hpp"

namespace hedgerow::kernels::cuda {

struct EmulatedBackend {
  template <typename Kernel>
  static void run(const typename Kernel::Arguments& arguments, Stream /*stream*/) {
    static std::atomic<std::uint64_t> seed{1};
    const Blocks grid = Kernel::grid(arguments);
    emulation::launch({grid.x, grid.y, grid.z},
                      Kernel::kThreads,
                      sizeof(typename Kernel::Shared),
                      seed++,
                      [&](emulation::Grid at, void* shared) {
                        Kernel::run(arguments,
                                    *static_cast<typename Kernel::Shared*>(shared),
                                    Blocks{at.x, at.y, at.z});
                      });
  }
};

const LaunchTable kLaunches64 = Launches<64, EmulatedBackend>::table();
const LaunchTable kLaunches128 = Launches<128, EmulatedBackend>::table();
const TransferLaunchTable kTransferLaunches64 = TransferLaunches<64, EmulatedBackend>::table();
const TransferLaunchTable kTransferLaunches128 = TransferLaunches<128, EmulatedBackend>::table();
const CrossEntropyLaunchTable kCrossEntropyLaunches64 =
    CrossEntropyLaunches<64, EmulatedBackend>::table();
const CrossEntropyLaunchTable kCrossEntropyLaunches128 =
    CrossEntropyLaunches<128, EmulatedBackend>::table();

void launch_prepare(const PrepareArguments& arguments, Stream stream) {
  EmulatedBackend::run<PrepareKernel>(arguments, stream);
}

// A small card: few enough multiprocessors that short problems are walked in segments too.
DeviceLimits device_limits() { return {8, std::size_t{227} << 10}; }

Stream current_stream(c10::Device /*device*/) { return nullptr; }

}  // namespace hedgerow::kernels::cuda
