// The CUDA form with emulated kernels, on CPU tensors: the cases of cuda_hybrid_test.cpp.
#include <ATen/Parallel.h>

#include "kernels/hybrid_attention_cuda.hpp"
#include "tests/kernels/cuda_hybrid.hpp"

namespace hedgerow::kernels::testing {
namespace {

class EmulatedForm : public ::testing::Environment {
 public:
  void SetUp() override {
    cuda::use_hybrid_form(&cuda::kCudaForm);
    // The references are small, and a second thread would only wait beside other tests.
    at::set_num_threads(1);
  }
};
const ::testing::Environment* const kForm = ::testing::AddGlobalTestEnvironment(new EmulatedForm);

INSTANTIATE_TEST_SUITE_P(Emulated, CudaHybrid, ::testing::Values(at::kCPU));

}  // namespace
}  // namespace hedgerow::kernels::testing
