// Starts a kernel (*_kernels.cuh) on a CUDA stream and checks the launch. Every error is thrown
// with the call's text.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/tile/shapes.cuh"

#define HEDGEROW_CUDA_CHECK(call) ::hedgerow::kernels::cuda::check_cuda(call, #call)

namespace hedgerow::kernels::cuda {

inline void check_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA error: ") + cudaGetErrorString(status) + ", from " +
                             call);
  }
}

// How many threadblocks of a kernel are to share a multiprocessor: what limits its registers.
template <typename Kernel>
constexpr int threadblocks_of() {
  if constexpr (requires { Kernel::kThreadblocks; }) {
    return Kernel::kThreadblocks;
  } else {
    return 1;
  }
}

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, threadblocks_of<Kernel>())
    run_kernel(const __grid_constant__ typename Kernel::Arguments arguments) {
  extern __shared__ __align__(128) unsigned char shared[];
  Kernel::run(arguments,
              *reinterpret_cast<typename Kernel::Shared*>(shared),
              Grid{static_cast<int>(blockIdx.x),
                   static_cast<int>(blockIdx.y),
                   static_cast<int>(blockIdx.z)});
}

struct CudaBackend {
  template <typename Kernel>
  static void run(const typename Kernel::Arguments& arguments, void* stream) {
    constexpr auto kBytes = static_cast<int>(sizeof(typename Kernel::Shared));
    constexpr int kDefaultLimit = 48 << 10;
    if (kBytes > kDefaultLimit) {
      // The attribute belongs to the function on this device: a static flag would miss the second
      // device.
      HEDGEROW_CUDA_CHECK(cudaFuncSetAttribute(
          run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    }
    const Grid grid = Kernel::grid(arguments);
    const dim3 threadblocks(static_cast<unsigned>(grid.x),
                            static_cast<unsigned>(grid.y),
                            static_cast<unsigned>(grid.z));
    run_kernel<Kernel>
        <<<threadblocks, Kernel::kThreads, kBytes, static_cast<cudaStream_t>(stream)>>>(arguments);
    HEDGEROW_CUDA_CHECK(cudaGetLastError());
  }
};

}  // namespace hedgerow::kernels::cuda
