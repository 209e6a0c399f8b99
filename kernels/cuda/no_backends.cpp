// Linked where there are no CUDA kernels: the operations then take the ATen backend for CUDA
// tensors.
#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/decode_cuda.hpp"
#include "kernels/cuda/elementwise_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels::cuda {

const HybridBackend* hybrid_backend() { return nullptr; }
const TransferBackend* transfer_backend() { return nullptr; }
const DecodeBackend* decode_backend() { return nullptr; }
const ElementwiseBackend* elementwise_backend() { return nullptr; }

}  // namespace hedgerow::kernels::cuda
