// On CUDA tensors: the cases of device_*_test.cpp with the ATen backends, and the fused CUDA
// backends.
#include "tests/kernels/cuda/cuda_decode.hpp"
#include "tests/kernels/cuda/cuda_hybrid.hpp"
#include "tests/kernels/device_backends.hpp"

namespace hedgerow::kernels::testing {
namespace {

HEDGEROW_INSTANTIATE_DEVICE_BACKENDS(Cuda, Backend::kAten, at::kCUDA);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaHybrid, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, CudaDecode, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, CudaRecall, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, CudaTransfer, ::testing::Values(at::kCUDA));
INSTANTIATE_TEST_SUITE_P(Cuda, CudaCrossEntropy, ::testing::Values(at::kCUDA));

}  // namespace
}  // namespace hedgerow::kernels::testing
