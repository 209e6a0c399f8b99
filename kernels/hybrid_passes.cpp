#include "kernels/hybrid_passes.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "kernels/aten/hybrid_attention_aten.hpp"
#include "kernels/aten/transfer_loss_aten.hpp"
#include "kernels/cpu/hybrid_attention_cpu.hpp"
#include "kernels/cpu/transfer_loss_cpu.hpp"
#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels {

Backend hybrid_backend_for(const at::Tensor& q,
                           const HybridParameters& parameters,
                           const HybridOptions& options,
                           bool input_gradients,
                           Backend asked) {
  return choose_hybrid_backend("hybrid attention", asked, q, options, [&]() -> std::string {
    const cuda::HybridBackend* fused = cuda::hybrid_backend();
    return fused == nullptr ? cuda::kNoCudaKernels
                            : fused->why_not(q, parameters, options, input_gradients);
  });
}

HybridForward hybrid_forward(Backend backend,
                             const HybridProblem& problem,
                             bool keep_for_backward) {
  RECORD_USER_SCOPE("hedgerow::hybrid_forward");
  switch (backend) {
    case Backend::kCpu:
      return cpu::hybrid_forward_cpu(cpu::on_cpu(problem), keep_for_backward);
    case Backend::kCuda:
      return cuda::hybrid_backend()->forward(problem, keep_for_backward);
    case Backend::kAuto:
    case Backend::kAten:
      break;
  }
  return aten::hybrid_forward_aten(problem, keep_for_backward);
}

HybridGradients hybrid_backward(Backend backend,
                                const HybridProblem& problem,
                                const HybridForward& forward,
                                const at::Tensor& dy,
                                const HybridNeeds& needs) {
  RECORD_USER_SCOPE("hedgerow::hybrid_backward");
  // A caller may give factors that no window reads; no backend has a gradient of them.
  HybridNeeds present = needs;
  present.window_factors = needs.window_factors && problem.windowed();
  switch (backend) {
    case Backend::kCpu:
      return cpu::hybrid_backward_cpu(cpu::on_cpu(problem), forward, dy, present);
    case Backend::kCuda:
      return cuda::hybrid_backend()->backward(problem, forward, dy, present);
    case Backend::kAuto:
    case Backend::kAten:
      break;
  }
  return aten::hybrid_backward_aten(problem, forward, dy, present);
}

Backend cross_entropy_backend_for(const at::Tensor& q,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options,
                                  Backend asked) {
  const Backend backend =
      choose_hybrid_backend("transfer_cross_entropy", asked, q, options, [&]() -> std::string {
        const cuda::TransferBackend* fused = cuda::transfer_backend();
        return fused == nullptr ? cuda::kNoCudaKernels
                                : fused->why_no_cross_entropy(q, parameters, options);
      });
  return backend == Backend::kCpu && q.scalar_type() == at::kDouble ? Backend::kAten : backend;
}

ParameterLoss cross_entropy(Backend backend, const HybridProblem& problem, bool with_gradients) {
  RECORD_USER_SCOPE("hedgerow::cross_entropy_of_weights");
  switch (backend) {
    case Backend::kCpu:
      return cpu::cross_entropy_cpu(cpu::on_cpu(problem), with_gradients);
    case Backend::kCuda:
      return cuda::transfer_backend()->cross_entropy(problem, with_gradients);
    case Backend::kAuto:
    case Backend::kAten:
      break;
  }
  return aten::cross_entropy_aten(problem, with_gradients);
}

}  // namespace hedgerow::kernels
