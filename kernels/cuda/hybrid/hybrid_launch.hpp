// Launches of the hybrid's kernels. Nothing here allocates or waits; work is queued on the given
// stream. A backend compiles the kernels of each head_dim and defines the tables below and what its
// device offers: hybrid_launch_64.cu and hybrid_launch_128.cu with nvcc, tests/kernels/emulation
// for the host. launch_tables.cpp chooses.
#pragma once

#include <cstddef>

#include "kernels/cuda/hybrid/hybrid_backward_arguments.hpp"
#include "kernels/cuda/tile/device.hpp"

namespace hedgerow::kernels::cuda {

// Whether a kernel is compiled for this shape: head_dim 64 or 128; f = 32, 64 or 128 with negation,
// 64 or 128 without.
[[nodiscard]] bool has_kernel(KernelShape shape);

// The largest threadblock of the shape on the current device, in bytes of shared memory.
[[nodiscard]] std::size_t shared_bytes_needed(KernelShape shape, bool input_gradients);

void launch_prepare(const PrepareArguments& arguments, Stream stream);
void launch_states(KernelShape shape, const StatesArguments& arguments, Stream stream);
void launch_forward(KernelShape shape, const ForwardArguments& arguments, Stream stream);
void launch_backward_queries(KernelShape shape,
                             bool input_gradients,
                             const BackwardArguments& arguments,
                             Stream stream);
void launch_backward_keys(KernelShape shape,
                          bool input_gradients,
                          const BackwardArguments& arguments,
                          Stream stream);

// One head_dim's kernels; false: none of this shape.
struct LaunchTable {
  bool (*states)(KernelShape, const StatesArguments&, Stream);
  bool (*forward)(KernelShape, const ForwardArguments&, Stream);
  bool (*backward_queries)(KernelShape, bool input_gradients, const BackwardArguments&, Stream);
  bool (*backward_keys)(KernelShape, bool input_gradients, const BackwardArguments&, Stream);
  // On a device that has `limit` bytes.
  std::size_t (*shared_bytes)(KernelShape, bool input_gradients, std::size_t limit);
};
extern const LaunchTable kLaunches64, kLaunches128;

}  // namespace hedgerow::kernels::cuda
