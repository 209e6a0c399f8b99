// elementwise_launch.hpp on the host.
#include "kernels/cuda/elementwise/elementwise_kernels.cuh"
#include "tests/kernels/emulation/emulated_backend.hpp"

namespace hedgerow::kernels::cuda {

void launch_norm(const NormArguments& arguments, Stream stream) {
  EmulatedBackend::run<NormKernel>(arguments, stream);
}
void launch_norm_backward(const NormBackwardArguments& arguments, Stream stream) {
  EmulatedBackend::run<NormBackwardKernel>(arguments, stream);
}
void launch_swiglu(const SwigluArguments& arguments, Stream stream) {
  EmulatedBackend::run<SwigluKernel<false>>(arguments, stream);
}
void launch_swiglu_backward(const SwigluArguments& arguments, Stream stream) {
  EmulatedBackend::run<SwigluKernel<true>>(arguments, stream);
}
void launch_split_heads(const HeadsArguments& arguments, Stream stream) {
  EmulatedBackend::run<HeadsKernel<false>>(arguments, stream);
}
void launch_split_heads_backward(const HeadsArguments& arguments, Stream stream) {
  EmulatedBackend::run<HeadsKernel<true>>(arguments, stream);
}

}  // namespace hedgerow::kernels::cuda
