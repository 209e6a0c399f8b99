// decode_launch.hpp on the host.
#include "kernels/cuda/decode/decode_kernels.cuh"
#include "tests/kernels/emulation/emulated_backend.hpp"

namespace hedgerow::kernels::cuda {

using EmulatedDecode = DecodeLaunches<EmulatedBackend>;

std::size_t decode_shared_bytes(int head_dim, int features, bool recalls) {
  return EmulatedDecode::shared_bytes(head_dim, features, recalls);
}
void launch_decode_state(const DecodeStateArguments& arguments, Stream stream) {
  EmulatedDecode::state(arguments, stream);
}
void launch_decode_recall(const DecodeRecallArguments& arguments, Stream stream) {
  EmulatedDecode::recall(arguments, stream);
}
void launch_decode_step(const DecodeStepArguments& arguments, Stream stream) {
  EmulatedDecode::step(arguments, stream);
}
void launch_decode_ring(const DecodeRingArguments& arguments, Stream stream) {
  EmulatedBackend::run<DecodeRingKernel>(arguments, stream);
}

}  // namespace hedgerow::kernels::cuda
