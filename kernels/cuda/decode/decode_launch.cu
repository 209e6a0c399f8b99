// The decode kernels on a CUDA stream.
#include "kernels/cuda/decode/decode_kernels.cuh"
#include "kernels/cuda/tile/launch.cuh"

namespace hedgerow::kernels::cuda {

using CudaDecode = DecodeLaunches<CudaBackend>;

std::size_t decode_shared_bytes(int head_dim, int features, bool recalls) {
  return CudaDecode::shared_bytes(head_dim, features, recalls);
}
void launch_decode_state(const DecodeStateArguments& arguments, Stream stream) {
  CudaDecode::state(arguments, stream);
}
void launch_decode_recall(const DecodeRecallArguments& arguments, Stream stream) {
  CudaDecode::recall(arguments, stream);
}
void launch_decode_step(const DecodeStepArguments& arguments, Stream stream) {
  CudaDecode::step(arguments, stream);
}
void launch_decode_ring(const DecodeRingArguments& arguments, Stream stream) {
  CudaBackend::run<DecodeRingKernel>(arguments, stream);
}

}  // namespace hedgerow::kernels::cuda
