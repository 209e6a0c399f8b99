// The cross-entropy's kernels for head_dim 128.
#include "kernels/cuda/cross_entropy_kernels.cuh"
#include "kernels/cuda/launch.cuh"

namespace hedgerow::kernels::cuda {

const CrossEntropyLaunchTable kCrossEntropyLaunches128 =
    CrossEntropyLaunches<128, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
