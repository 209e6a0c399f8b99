// The fused CUDA form of the hybrid: tensors to the kernels of kernels/cuda/. hybrid_attention.cpp
// checks, owns autograd, and takes the ATen form where this one does not apply. A build without
// CUDA has no form; the tests give it one that runs the same kernels on the host.
#pragma once

#include <string>

#include "kernels/hybrid_problem.hpp"

namespace hedgerow::kernels::cuda {

// Of the entries that want a form by name.
inline constexpr const char* kNoCudaKernels =
    "this build has no CUDA kernels; build with HEDGEROW_CUDA=ON";

struct HybridForm {
  // Empty where the kernels compute this problem; else why not, in words. They want bf16, head_dim
  // 64 or 128, a compiled number of columns, both maps of one shape, and shared memory for a
  // threadblock. input_gradients: whether dq, dk or dv may be asked for.
  std::string (*why_not)(const at::Tensor& q,
                         const HybridParameters& parameters,
                         const HybridOptions& options,
                         bool input_gradients);
  HybridForward (*forward)(const HybridProblem& problem, bool keep_for_backward);
  HybridGradients (*backward)(const HybridProblem& problem,
                              const HybridForward& forward,
                              const at::Tensor& dy,
                              const HybridNeeds& needs);
};

// The form in use; null: none.
[[nodiscard]] const HybridForm* hybrid_form();
void use_hybrid_form(const HybridForm* form);  // for tests, while nothing attends

// hybrid_attention_cuda.cpp. On the current stream of the inputs' device; memory from ATen's
// caching allocator; never waits. The bytes depend on the inputs and on the device's number of
// multiprocessors, never on timing.
extern const HybridForm kCudaForm;

#if defined(HEDGEROW_CUDA_KERNELS)
inline constexpr const HybridForm* kBuiltForm = &kCudaForm;
#else
inline constexpr const HybridForm* kBuiltForm = nullptr;
#endif

}  // namespace hedgerow::kernels::cuda
