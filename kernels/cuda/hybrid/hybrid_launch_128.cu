// The hybrid's kernels for head_dim 128.
#include "kernels/cuda/hybrid/hybrid_kernels.cuh"
#include "kernels/cuda/tile/launch.cuh"

namespace hedgerow::kernels::cuda {

const LaunchTable kLaunches128 = Launches<128, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
