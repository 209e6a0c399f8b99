// The teacher's kernel and attention transfer's for head_dim 128.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/transfer_kernels.cuh"

namespace hedgerow::kernels::cuda {

const TransferLaunchTable kTransferLaunches128 = TransferLaunches<128, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
