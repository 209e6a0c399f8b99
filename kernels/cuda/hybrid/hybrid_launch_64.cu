// The hybrid's kernels for head_dim 64, what does not depend on it, and the device.
#include "kernels/cuda/hybrid/hybrid_kernels.cuh"
#include "kernels/cuda/tile/launch.cuh"

namespace hedgerow::kernels::cuda {

const LaunchTable kLaunches64 = Launches<64, CudaBackend>::table();

void launch_prepare(const PrepareArguments& arguments, Stream stream) {
  CudaBackend::run<PrepareKernel>(arguments, stream);
}

DeviceLimits device_limits() {
  int device = 0, multiprocessors = 0, shared_bytes = 0;
  HEDGEROW_CUDA_CHECK(cudaGetDevice(&device));
  HEDGEROW_CUDA_CHECK(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  HEDGEROW_CUDA_CHECK(
      cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  return {multiprocessors, static_cast<std::size_t>(shared_bytes)};
}

}  // namespace hedgerow::kernels::cuda
