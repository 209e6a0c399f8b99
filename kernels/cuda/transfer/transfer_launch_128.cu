// The teacher's kernel and attention transfer's for head_dim 128.
#include "kernels/cuda/tile/launch.cuh"
#include "kernels/cuda/transfer/transfer_kernels.cuh"

namespace hedgerow::kernels::cuda {

const TransferLaunchTable kTransferLaunches128 = TransferLaunches<128, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
