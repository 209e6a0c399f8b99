// The cases of the hybrid's fused CUDA form. cuda_kernels_test runs them on CPU tensors, with the
// kernels emulated; gpu_kernels_test on a card.
#pragma once

#include "kernels/forms.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels::testing {

// make_inputs with maps that bf16 holds: the kernels see the values that the reference sees.
AttentionInputs make_bfloat16_inputs(const AttentionCase& shape);

class CudaHybrid : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  // Skips, with the reason, where the device is not there.
  void SetUp() override;

  [[nodiscard]] Outcome outcome(const AttentionCase& shape, const AttentionInputs& inputs) const;
  // y and every gradient, by the 2 x rule against a plain program in bf16. The second form compares
  // the largest errors of three draws: of two window factors either side may hit one by luck.
  void expect_hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const;
  void expect_hybrid(const AttentionCase& shape) const;
};

}  // namespace hedgerow::kernels::testing
