// The launch headers of kernels/cuda/ on the host, but for the decode kernels'.
#include "kernels/cuda/hybrid/hybrid_kernels.cuh"
#include "kernels/cuda/stream.hpp"
#include "kernels/cuda/transfer/cross_entropy_kernels.cuh"
#include "kernels/cuda/transfer/transfer_kernels.cuh"
#include "tests/kernels/emulation/emulated_backend.hpp"
#include "tests/kernels/emulation/emulated_device.hpp"

namespace hedgerow::kernels::cuda {

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

namespace emulation {
namespace {

std::size_t shared_bytes = kSharedBytes;

}  // namespace

SharedBytesLimit::SharedBytesLimit(std::size_t bytes) { shared_bytes = bytes; }
SharedBytesLimit::~SharedBytesLimit() { shared_bytes = kSharedBytes; }

}  // namespace emulation

// A small card: few enough multiprocessors that short problems are walked in segments too.
DeviceLimits device_limits() { return {8, emulation::shared_bytes}; }

Stream current_stream(c10::Device /*device*/) { return nullptr; }

}  // namespace hedgerow::kernels::cuda
