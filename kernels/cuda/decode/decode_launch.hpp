// Launches of the decode kernels: queued on the given stream, nothing allocated, nothing waited
// for, and no launch that depends on a position. A backend compiles them: decode_launch.cu with
// nvcc, tests/kernels/emulation for the host.
#pragma once

#include "kernels/cuda/decode/decode_arguments.hpp"
#include "kernels/cuda/tile/device.hpp"

namespace hedgerow::kernels::cuda {

// Whether there is a kernel: head_dim 64 or 128, a multiple of 4 columns, at most 256 features.
[[nodiscard]] inline bool has_decode_kernel(int head_dim, int columns, int features) {
  return (head_dim == 64 || head_dim == 128) && columns % 4 == 0 && features <= kMostDecodeFeatures;
}

// The largest threadblock, in bytes of shared memory; with a recall cache that of its choice too.
[[nodiscard]] std::size_t decode_shared_bytes(int head_dim, int features, bool recalls);

void launch_decode_state(const DecodeStateArguments& arguments, Stream stream);
void launch_decode_recall(const DecodeRecallArguments& arguments, Stream stream);
void launch_decode_step(const DecodeStepArguments& arguments, Stream stream);
void launch_decode_ring(const DecodeRingArguments& arguments, Stream stream);

}  // namespace hedgerow::kernels::cuda
