// The element-wise kernels on a CUDA stream.
#include "kernels/cuda/elementwise/elementwise_kernels.cuh"
#include "kernels/cuda/tile/launch.cuh"

namespace hedgerow::kernels::cuda {

void launch_norm(const NormArguments& arguments, Stream stream) {
  CudaBackend::run<NormKernel>(arguments, stream);
}
void launch_norm_backward(const NormBackwardArguments& arguments, Stream stream) {
  CudaBackend::run<NormBackwardKernel>(arguments, stream);
}
void launch_swiglu(const SwigluArguments& arguments, Stream stream) {
  CudaBackend::run<SwigluKernel<false>>(arguments, stream);
}
void launch_swiglu_backward(const SwigluArguments& arguments, Stream stream) {
  CudaBackend::run<SwigluKernel<true>>(arguments, stream);
}
void launch_split_heads(const HeadsArguments& arguments, Stream stream) {
  CudaBackend::run<HeadsKernel<false>>(arguments, stream);
}
void launch_split_heads_backward(const HeadsArguments& arguments, Stream stream) {
  CudaBackend::run<HeadsKernel<true>>(arguments, stream);
}

}  // namespace hedgerow::kernels::cuda
