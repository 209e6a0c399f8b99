#include "worker/model/layer/norm.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <utility>

#include "worker/model/layer/cpu_rows.hpp"

namespace hedgerow::worker {

bool has_cpu_rows(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

const kernels::cuda::ElementwiseBackend* fused_for(const at::Tensor& rows) {
  const kernels::cuda::ElementwiseBackend* backend =
      rows.is_cuda() ? kernels::cuda::elementwise_backend() : nullptr;
  return backend != nullptr && backend->takes(rows) ? backend : nullptr;
}

at::Tensor norm_gradient(const at::Tensor& dy,
                         const at::Tensor& x,
                         const at::Tensor& weight,
                         double eps) {
  const at::Tensor inverse = at::rsqrt(x.square().mean(-1, true) + eps);
  const at::Tensor weighted = dy * weight;
  const at::Tensor mean = (weighted * x).mean(-1, true);
  return inverse * weighted - x * (inverse.pow(3) * mean);
}

void add_weight_gradient(const at::Tensor& weight,
                         const at::Tensor& dy,
                         const at::Tensor& x,
                         double eps) {
  const at::Tensor inverse = at::rsqrt(x.square().mean(-1, true) + eps);
  weight.mutable_grad().add_((dy * x * inverse).reshape({-1, x.size(-1)}).sum(0));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  RECORD_USER_SCOPE("hedgerow::rms_norm");
  if (has_cpu_rows(x)) return cpu::rms_norm(x.contiguous(), weight, eps);
  if (const auto* cuda = fused_for(x)) return cuda->rms_norm(x, weight, eps);
  return plain_rms_norm(x, weight, eps);
}

Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps) {
  RECORD_USER_SCOPE("hedgerow::add_rms_norm");
  if (has_cpu_rows(residual))
    return cpu::add_rms_norm(residual.contiguous(), update.contiguous(), weight, eps);
  if (const auto* cuda = fused_for(residual);
      cuda != nullptr && residual.sizes() == update.sizes()) {
    auto [sum, normed] = cuda->add_rms_norm(residual, update, weight, eps);
    return {std::move(sum), std::move(normed)};
  }
  const at::Tensor sum = residual + update;
  return {sum, plain_rms_norm(sum, weight, eps)};
}

at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream) {
  RECORD_USER_SCOPE("hedgerow::add_round");
  // ATen adds two bf16 in fp32 and rounds once.
  if (residual.is_cuda() && residual.scalar_type() == at::kBFloat16 &&
      update.scalar_type() == at::kBFloat16 && stream != at::kHalf)
    return residual + update;
  if (!has_cpu_rows(residual) || stream == at::kHalf)
    return plain_add_round(residual, update, stream);
  return cpu::add_round(residual.contiguous(), update.contiguous(), stream);
}

at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps) {
  RECORD_USER_SCOPE("hedgerow::rms_norm_backward");
  if (is_trained(weight)) {
    at::Tensor dy = output_gradient.to(at::kFloat);
    if (low_rank.defined()) dy = dy + low_rank.view(dy.sizes());
    add_weight_gradient(weight, dy, x.to(at::kFloat), eps);
  }
  if (const auto* cuda = fused_for(x))
    return cuda->rms_norm_backward(residual_gradient, output_gradient, low_rank, x, weight, eps);
  if (!has_cpu_rows(x))
    return plain_rms_norm_backward(residual_gradient, output_gradient, low_rank, x, weight, eps);
  return cpu::rms_norm_backward(residual_gradient.contiguous(),
                                output_gradient.contiguous(),
                                low_rank,
                                x.contiguous(),
                                weight,
                                eps);
}

void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale) {
  RECORD_USER_SCOPE("hedgerow::add_scaled");
  if (has_cpu_rows(y)) {
    cpu::add_scaled(y, first, update, scale);
  } else {
    y.narrow(1, first, update.size(1)).add_(update, scale);
  }
}

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const at::Tensor wide = x.to(at::kFloat);
  return (wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight).to(x.scalar_type());
}

at::Tensor plain_add_round(const at::Tensor& residual,
                           const at::Tensor& update,
                           at::ScalarType stream) {
  return (residual.to(at::kFloat) + update.to(at::kFloat))
      .to(residual.scalar_type())
      .to(stream)
      .to(residual.scalar_type());
}

at::Tensor plain_rms_norm_backward(const at::Tensor& residual_gradient,
                                   const at::Tensor& output_gradient,
                                   const at::Tensor& low_rank,
                                   const at::Tensor& x,
                                   const at::Tensor& weight,
                                   double eps) {
  at::Tensor dy = output_gradient.to(at::kFloat);
  if (low_rank.defined()) dy = dy + low_rank.view(dy.sizes());
  const at::Tensor dx = norm_gradient(dy, x.to(at::kFloat), weight, eps);
  return (residual_gradient.to(at::kFloat) + dx).to(x.scalar_type());
}

}  // namespace hedgerow::worker
