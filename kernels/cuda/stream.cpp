#include "kernels/cuda/stream.hpp"

#include <c10/cuda/CUDAStream.h>

namespace hedgerow::kernels::cuda {

Stream current_stream(c10::Device device) {
  return c10::cuda::getCurrentCUDAStream(device.index()).stream();
}

}  // namespace hedgerow::kernels::cuda
