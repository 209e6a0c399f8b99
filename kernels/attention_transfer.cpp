#include "kernels/attention_transfer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"

namespace hedgerow::kernels {
namespace {

AttentionTransfer transfer_fused(const at::Tensor& q,
                                 const at::Tensor& k,
                                 const at::Tensor& v,
                                 const HybridParameters& parameters,
                                 const HybridOptions& options) {
  const HybridNeeds needs = needs_of(parameters);
  const cuda::TransferResult result = [&] {
    const c10::NoGradGuard no_grad;
    return cuda::transfer_backend()->transfer(make_hybrid_problem(q, k, v, parameters, options),
                                              needs);
  }();
  return {result.y_true, with_gradients(result.mse, parameters)};
}

AttentionTransfer transfer_composed(const at::Tensor& q,
                                    const at::Tensor& k,
                                    const at::Tensor& v,
                                    const HybridParameters& parameters,
                                    HybridOptions options,
                                    Backend backend,
                                    const at::Tensor& given) {
  options.fp32_output = true;
  const at::Tensor y_true =
      given.defined() ? given : softmax_attention_by_sequence(q, k, v, backend);
  const at::Tensor y =
      hybrid_attention(q.detach(), k.detach(), v.detach(), parameters, options, backend);
  return {y_true, transfer_mse(y, y_true, backend)};
}

}  // namespace

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options,
                                     Backend backend,
                                     const at::Tensor& y_true) {
  check_problem(q, k, v, parameters, options);
  const Backend chosen = choose_backend("attention_transfer", backend, q, [&]() -> std::string {
    const cuda::TransferBackend* fused = cuda::transfer_backend();
    return fused == nullptr ? cuda::kNoCudaKernels : fused->why_no_transfer(q, parameters, options);
  });
  return chosen == Backend::kCuda
             ? transfer_fused(q, k, v, parameters, options)
             : transfer_composed(q, k, v, parameters, options, backend, y_true);
}

}  // namespace hedgerow::kernels
