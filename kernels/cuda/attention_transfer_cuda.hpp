// The fused CUDA backends of the teacher, of attention transfer and of its cross-entropy: tensors
// to the kernels of kernels/cuda/. The teacher of the first two is one kernel. As
// hybrid_attention_cuda.hpp, a build without CUDA has none, and the tests give them a host that
// runs the same kernels.
#pragma once

#include <string>

#include "kernels/problem/parameter_loss.hpp"

namespace hedgerow::kernels::cuda {

struct TransferResult {
  at::Tensor y_true;  // [B, H, T, D] bf16, in [B, T, H, D] memory
  ParameterLoss mse;  // fp32
};

struct TransferBackend {
  // Empty where the kernel takes q, k and v of this kind; else why not, in words.
  std::string (*why_no_softmax)(const at::Tensor& q);
  at::Tensor (*softmax)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);
  std::string (*why_no_transfer)(const at::Tensor& q,
                                 const HybridParameters& parameters,
                                 const HybridOptions& options);
  TransferResult (*transfer)(const HybridProblem& problem, const HybridNeeds& needs);
  std::string (*why_no_cross_entropy)(const at::Tensor& q,
                                      const HybridParameters& parameters,
                                      const HybridOptions& options);
  ParameterLoss (*cross_entropy)(const HybridProblem& problem, bool with_gradients);
};

// Null, stream, memory and bytes as hybrid_backend()'s.
[[nodiscard]] const TransferBackend* transfer_backend();

}  // namespace hedgerow::kernels::cuda
