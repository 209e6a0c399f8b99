#include "kernels/attention_transfer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "kernels/backend.hpp"
#include "kernels/checks.hpp"
#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"

namespace hedgerow::kernels {
namespace {

AttentionTransfer fused(const at::Tensor& q,
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

AttentionTransfer composed(const at::Tensor& q,
                           const at::Tensor& k,
                           const at::Tensor& v,
                           const HybridParameters& parameters,
                           HybridOptions options) {
  options.fp32_output = true;
  const at::Tensor y_true = softmax_attention_by_sequence(q, k, v);
  const at::Tensor y = hybrid_attention(q.detach(), k.detach(), v.detach(), parameters, options);
  return {y_true, transfer_mse(y, y_true)};
}

}  // namespace

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options) {
  check_problem(q, k, v, parameters, options);
  const cuda::TransferBackend* backend = q.is_cuda() ? cuda::transfer_backend() : nullptr;
  const bool is_fused =
      backend != nullptr && backend->why_no_transfer(q, parameters, options).empty();
  return is_fused ? fused(q, k, v, parameters, options) : composed(q, k, v, parameters, options);
}

namespace cuda {

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options) {
  check_problem(q, k, v, parameters, options);
  TORCH_CHECK(transfer_backend() != nullptr, "attention_transfer: ", kNoCudaKernels);
  const std::string reason = transfer_backend()->why_no_transfer(q, parameters, options);
  TORCH_CHECK(reason.empty(), "attention_transfer: ", reason);
  return fused(q, k, v, parameters, options);
}

at::Tensor softmax_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  check_attention(q, k, v);
  TORCH_CHECK(transfer_backend() != nullptr, "softmax_attention: ", kNoCudaKernels);
  const std::string reason = transfer_backend()->why_no_softmax(q);
  TORCH_CHECK(reason.empty(), "softmax_attention: ", reason);
  return transfer_backend()->softmax(q, k, v);
}

}  // namespace cuda
}  // namespace hedgerow::kernels
