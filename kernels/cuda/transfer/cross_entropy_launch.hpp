// Launches of the cross-entropy's kernels, as hybrid_launch.hpp's: nothing here allocates or waits.
// cross_entropy_launch_64.cu and cross_entropy_launch_128.cu with nvcc, tests/kernels/emulation for
// the host. The shapes are those of has_kernel.
#pragma once

#include "kernels/cuda/hybrid/hybrid_launch.hpp"
#include "kernels/cuda/transfer/cross_entropy_arguments.hpp"

namespace hedgerow::kernels::cuda {

enum class Side { kQueries, kKeys };

void launch_cross_entropy(KernelShape shape, const CrossEntropyArguments& arguments, Stream stream);
void launch_cross_entropy_backward(KernelShape shape,
                                   Side side,
                                   const CrossEntropyBackwardArguments& arguments,
                                   Stream stream);

// Shared memory of the largest threadblock; 0 for a shape that is not compiled.
[[nodiscard]] std::size_t cross_entropy_shared_bytes(KernelShape shape);

// One head_dim's kernels; false: none of this shape.
struct CrossEntropyLaunchTable {
  bool (*rows)(KernelShape, const CrossEntropyArguments&, Stream);
  bool (*backward)(KernelShape, Side, const CrossEntropyBackwardArguments&, Stream);
  std::size_t (*shared_bytes)(KernelShape);
};
extern const CrossEntropyLaunchTable kCrossEntropyLaunches64, kCrossEntropyLaunches128;

}  // namespace hedgerow::kernels::cuda
