// Launches of the element-wise kernels: queued on the given stream, nothing allocated, nothing
// waited for. A backend compiles them: elementwise_launch.cu with nvcc, tests/kernels/emulation for
// the host.
#pragma once

#include "kernels/cuda/elementwise/elementwise_arguments.hpp"
#include "kernels/cuda/tile/device.hpp"

namespace hedgerow::kernels::cuda {

void launch_norm(const NormArguments& arguments, Stream stream);
void launch_norm_backward(const NormBackwardArguments& arguments, Stream stream);
void launch_swiglu(const SwigluArguments& arguments, Stream stream);
void launch_swiglu_backward(const SwigluArguments& arguments, Stream stream);
void launch_split_heads(const HeadsArguments& arguments, Stream stream);
void launch_split_heads_backward(const HeadsArguments& arguments, Stream stream);

}  // namespace hedgerow::kernels::cuda
