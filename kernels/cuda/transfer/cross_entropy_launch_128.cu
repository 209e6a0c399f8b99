// The cross-entropy's kernels for head_dim 128.
#include "kernels/cuda/tile/launch.cuh"
#include "kernels/cuda/transfer/cross_entropy_kernels.cuh"

namespace hedgerow::kernels::cuda {

const CrossEntropyLaunchTable kCrossEntropyLaunches128 =
    CrossEntropyLaunches<128, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
