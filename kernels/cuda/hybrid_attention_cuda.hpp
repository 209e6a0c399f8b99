// The fused CUDA backend of the hybrid: tensors to the kernels of kernels/cuda/.
// hybrid_attention.cpp checks, owns autograd, and takes the ATen backend where this one does not
// apply. A build without CUDA has no backend; the tests give it one that runs the same kernels on
// the host.
#pragma once

#include <string>

#include "kernels/problem/hybrid_problem.hpp"

namespace hedgerow::kernels::cuda {

// What an operation says where a caller asks for Backend::kCuda in such a build.
inline constexpr const char* kNoCudaKernels =
    "this build has no CUDA kernels; build with HEDGEROW_CUDA=ON";

// HybridForward::saved: what rounding took from y, and sum_window p (v - y), [B, H, T, D] bf16; the
// window's maximum of log2(e) s, and how many keys are at it, [B, H, T].
enum Saved : std::size_t { kRest, kPull, kMaxima, kTies, kNumSaved };

struct HybridBackend {
  // Empty where the kernels compute this problem; else why not, in words. They want bf16, head_dim
  // 64 or 128, a compiled number of columns, both maps of one shape, and shared memory for a
  // threadblock. input_gradients: whether dq, dk or dv may be asked for.
  std::string (*why_not)(const at::Tensor& q,
                         const HybridParameters& parameters,
                         const HybridOptions& options,
                         bool input_gradients);
  HybridForward (*forward)(const HybridProblem& problem, bool keep_for_backward);
  // window_attention.hpp; why_not_window as why_not.
  std::string (*why_not_window)(const at::Tensor& q);
  at::Tensor (*window)(const at::Tensor& q,
                       const at::Tensor& k,
                       const at::Tensor& v,
                       const HybridOptions& options);
  HybridGradients (*backward)(const HybridProblem& problem,
                              const HybridForward& forward,
                              const at::Tensor& dy,
                              const HybridNeeds& needs);
};

// Null in a program that is linked with no_backends.cpp. On the current stream of the inputs'
// device; memory from ATen's caching allocator; never waits. The bytes depend on the inputs and on
// the device's number of multiprocessors, never on timing.
[[nodiscard]] const HybridBackend* hybrid_backend();

}  // namespace hedgerow::kernels::cuda
