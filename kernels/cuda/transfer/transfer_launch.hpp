// Launches of the teacher's kernel and of attention transfer's, as hybrid_launch.hpp's: nothing
// here allocates or waits. transfer_launch_64.cu and transfer_launch_128.cu with nvcc,
// tests/kernels/emulation for the host.
#pragma once

#include "kernels/cuda/hybrid/hybrid_launch.hpp"

namespace hedgerow::kernels::cuda {

// head_dim 64 or 128.
void launch_softmax(int head_dim, const SoftmaxArguments& arguments, Stream stream);

// The shapes of has_kernel.
void launch_transfer(KernelShape shape, const TransferArguments& arguments, Stream stream);

// Shared memory of launch_transfer's threadblock on the current device; 0 for a shape that is not
// compiled.
[[nodiscard]] std::size_t transfer_shared_bytes(KernelShape shape);

// One head_dim's kernels; false: none of this shape.
struct TransferLaunchTable {
  void (*softmax)(const SoftmaxArguments&, Stream);
  bool (*transfer)(KernelShape, const TransferArguments&, Stream);
  std::size_t (*shared_bytes)(KernelShape, std::size_t limit);  // on a device that has `limit`
};
extern const TransferLaunchTable kTransferLaunches64, kTransferLaunches128;

}  // namespace hedgerow::kernels::cuda
