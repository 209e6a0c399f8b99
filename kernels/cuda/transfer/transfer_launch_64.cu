// The teacher's kernel and attention transfer's for head_dim 64.
#include "kernels/cuda/tile/launch.cuh"
#include "kernels/cuda/transfer/transfer_kernels.cuh"

namespace hedgerow::kernels::cuda {

const TransferLaunchTable kTransferLaunches64 = TransferLaunches<64, CudaBackend>::table();

}  // namespace hedgerow::kernels::cuda
