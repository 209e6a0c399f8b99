// The CUDA backends with emulated kernels, on CPU tensors: the cases of cuda_*_test.cpp.
#include <ATen/Parallel.h>

#include "tests/kernels/cuda/cuda_decode.hpp"
#include "tests/kernels/cuda/cuda_hybrid.hpp"

namespace hedgerow::kernels::testing {
namespace {

class OneThread : public ::testing::Environment {
 public:
  void SetUp() override {
    // The references are small, and a second thread would only wait beside other tests.
    at::set_num_threads(1);
  }
};
const ::testing::Environment* const kOneThread = ::testing::AddGlobalTestEnvironment(new OneThread);

INSTANTIATE_TEST_SUITE_P(Emulated, CudaHybrid, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Emulated, CudaTransfer, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Emulated, CudaCrossEntropy, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Emulated, CudaDecode, ::testing::Values(at::kCPU));
INSTANTIATE_TEST_SUITE_P(Emulated, CudaRecall, ::testing::Values(at::kCPU));

}  // namespace
}  // namespace hedgerow::kernels::testing
