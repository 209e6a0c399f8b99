// hybrid_launch.hpp on the host.
#include "kernels/cuda/hybrid_kernels.cuh"
#include "kernels/cuda/stream.hpp"
#include "tests/kernels/emulation/emulated_backend.hpp"

namespace hedgerow::kernels::cuda {

const LaunchTable kLaunches64 = Launches<64, EmulatedBackend>::table();
const LaunchTable kLaunches128 = Launches<128, EmulatedBackend>::table();

void launch_prepare(const PrepareArguments& arguments, Stream stream) {
  EmulatedBackend::run<PrepareKernel>(arguments, stream);
}

// A small card: few enough multiprocessors that short problems are walked in segments too.
DeviceLimits device_limits() { return {8, std::size_t{227} << 10}; }

Stream current_stream(c10::Device /*device*/) { return nullptr; }

}  // namespace hedgerow::kernels::cuda
