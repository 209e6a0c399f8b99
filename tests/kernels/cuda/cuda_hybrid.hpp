// The cases of the hybrid's fused CUDA backend.
#pragma once

#include "tests/kernels/cuda/cuda_backend.hpp"

namespace hedgerow::kernels::testing {

class CudaHybrid : public CudaBackend {
 protected:
  [[nodiscard]] Outcome outcome(const AttentionCase& shape, const AttentionInputs& inputs) const;
  [[nodiscard]] static Programs programs(const AttentionCase& shape);
  void expect_hybrid(const AttentionCase& shape, const AttentionInputs& inputs) const;
  void expect_hybrid(const AttentionCase& shape) const;
};

}  // namespace hedgerow::kernels::testing
