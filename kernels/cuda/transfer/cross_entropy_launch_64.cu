// The cross-entropy's kernels for head_dim 64.
#include "kernels/cuda/tile/launch.cuh"
#include "kernels/cuda/transfer/cross_entropy_kernels.cuh"

namespace hedgerow::kernels::cuda {

const CrossEntropyLaunchTable kCrossEntropyLaunches64 =
    CrossEntropyLaunches<64, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
