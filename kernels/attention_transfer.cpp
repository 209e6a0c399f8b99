#include "kernels/attention_transfer.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "kernels/cuda/attention_transfer_cuda.hpp"
#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/hybrid_passes.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "kernels/window_attention.hpp"

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

// (x - target)^2 summed and scaled; x becomes the gradient.
at::Tensor squared_error(const at::Tensor& x, const at::Tensor& target, double scale) {
  x.sub_(target);
  const at::Tensor sum = x.square().sum().mul_(scale);
  x.mul_(2.0 * scale);
  return sum;
}

// One walk gives y and y_linear, and one backward both their gradients.
AttentionTransfer with_linear_term(const at::Tensor& q,
                                   const at::Tensor& k,
                                   const at::Tensor& v,
                                   const HybridParameters& parameters,
                                   HybridOptions options,
                                   double linear_factor,
                                   Backend asked,
                                   const at::Tensor& given) {
  options.fp32_output = true;
  options.linear_output = true;
  const bool in_aten = asked == Backend::kAuto && q.scalar_type() == at::kDouble;
  const Backend backend =
      in_aten ? Backend::kAten : choose_backend("attention_transfer", asked, q, [] {
        return std::string("no CUDA kernel has the linear term; linear_factor must be 0");
      });
  const HybridNeeds needs = needs_of(parameters);
  AttentionTransfer result;
  ParameterLoss loss;
  {
    const c10::NoGradGuard no_grad;
    result.y_true = given.defined() ? given : softmax_attention_by_sequence(q, k, v, asked);
    const HybridProblem problem = make_hybrid_problem(q, k, v, parameters, options);
    const HybridForward forward = hybrid_forward(backend, problem, /*keep_for_backward=*/true);
    const at::Tensor dy = forward.y.clone(), dy_linear = forward.y_linear.clone();
    const std::int64_t T = q.size(2), first = first_linear_query(options, T);
    const std::int64_t rows = q.size(0) * q.size(1) * (T - first);
    loss.loss = squared_error(dy, result.y_true, 1.0 / static_cast<double>(dy.numel()));
    if (rows > 0) {
      loss.loss = loss.loss + squared_error(dy_linear,
                                            outside_attention(q, k, v, options),
                                            linear_factor / static_cast<double>(rows * q.size(3)));
    }
    if (needs_any(needs)) {
      loss.gradients = hybrid_backward(backend, problem, forward, dy, needs, dy_linear);
    }
  }
  result.loss = with_gradients(loss, parameters);
  return result;
}

}  // namespace

AttentionTransfer attention_transfer(const at::Tensor& q,
                                     const at::Tensor& k,
                                     const at::Tensor& v,
                                     const HybridParameters& parameters,
                                     const HybridOptions& options,
                                     double linear_factor,
                                     Backend backend,
                                     const at::Tensor& y_true) {
  check_problem(q, k, v, parameters, options);
  if (linear_factor != 0.0) {
    TORCH_CHECK(options.layout != WindowLayout::kNone,
                "attention_transfer: linear_factor needs a window, found the layout none");
    return with_linear_term(q, k, v, parameters, options, linear_factor, backend, y_true);
  }
  const Backend chosen = choose_backend("attention_transfer", backend, q, [&]() -> std::string {
    const cuda::TransferBackend* fused = cuda::transfer_backend();
    return fused == nullptr ? cuda::kNoCudaKernels : fused->why_no_transfer(q, parameters, options);
  });
  return chosen == Backend::kCuda
             ? transfer_fused(q, k, v, parameters, options)
             : transfer_composed(q, k, v, parameters, options, backend, y_true);
}

}  // namespace hedgerow::kernels
