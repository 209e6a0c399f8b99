// The cases of the CUDA decode kernels.
#pragma once

#include "tests/kernels/cuda/cuda_backend.hpp"

namespace hedgerow::kernels::testing {

class CudaDecode : public CudaBackend {
 protected:
  // The inputs as the kernels take them: bf16, maps in fp32.
  [[nodiscard]] AttentionInputs on_device(const AttentionInputs& inputs) const {
    return inputs.as(at::kBFloat16, at::kFloat, GetParam());
  }
  // No token seen yet.
  [[nodiscard]] DecodeState empty_state(const AttentionCase& shape, const AttentionInputs& x) const;
  // Tokens begin .. end - 1 of every row, one a step: y [B, H, end - begin, D].
  static at::Tensor decode(const AttentionCase& shape,
                           const AttentionInputs& x,
                           std::int64_t begin,
                           std::int64_t end,
                           DecodeState& state);
  // Prefills `split` tokens and decodes the others up to `end`: y of those by the 2 x rule against
  // the full forward.
  void expect_continuation(const AttentionCase& shape,
                           const AttentionInputs& inputs,
                           std::int64_t split,
                           std::int64_t end) const;
};

class CudaRecall : public CudaDecode {
 protected:
  // Decodes the last `steps` tokens in rows of prompts of `lengths`: after each step the ATen
  // backend's y, choices and state.
  void expect_steps(const AttentionCase& shape,
                    const std::vector<std::int64_t>& lengths,
                    std::int64_t steps) const;
};

}  // namespace hedgerow::kernels::testing
