#include "worker/finetune/backward_ops.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <limits>

#include "worker/finetune/backward_ops_cpu.hpp"

namespace hedgerow::worker {
namespace {

// With r = 1 / sqrt(mean x^2 + eps): dx = r (w dy) - x r^3 mean(w dy x).
at::Tensor norm_gradient(const at::Tensor& dy,
                         const at::Tensor& x,
                         const at::Tensor& weight,
                         double eps) {
  const at::Tensor inverse = at::rsqrt(x.square().mean(-1, true) + eps);
  const at::Tensor weighted = dy * weight;
  const at::Tensor mean = (weighted * x).mean(-1, true);
  return inverse * weighted - x * (inverse.pow(3) * mean);
}

// dy and x fp32 [..., n] of the same shape.
void add_weight_gradient(const at::Tensor& weight,
                         const at::Tensor& dy,
                         const at::Tensor& x,
                         double eps) {
  const at::Tensor inverse = at::rsqrt(x.square().mean(-1, true) + eps);
  weight.mutable_grad().add_((dy * x * inverse).reshape({-1, x.size(-1)}).sum(0));
}

// The transpose of the rotation (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin).
at::Tensor rotate_back(const at::Tensor& dy, const at::Tensor& cos, const at::Tensor& sin) {
  const auto halves = dy.chunk(2, -1);
  return dy * cos + at::cat({halves[1], halves[0].neg()}, -1) * sin;
}

bool fast(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16);
}

}  // namespace

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
  if (!fast(x))
    return plain_rms_norm_backward(residual_gradient, output_gradient, low_rank, x, weight, eps);
  return cpu::rms_norm_backward(residual_gradient.contiguous(),
                                output_gradient.contiguous(),
                                low_rank,
                                x.contiguous(),
                                weight,
                                eps);
}

at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  RECORD_USER_SCOPE("hedgerow::swiglu_backward");
  if (const auto* cuda = fused_for(gate_up); cuda != nullptr && gate_up.size(-1) % 16 == 0)
    return cuda->swiglu_backward(output_gradient, gate_up);
  if (!fast(gate_up)) return plain_swiglu_backward(output_gradient, gate_up);
  return cpu::swiglu_backward(output_gradient.contiguous(), gate_up.contiguous());
}

at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const at::Tensor& cos,
                                const at::Tensor& sin,
                                const HeadNorms& norms) {
  RECORD_USER_SCOPE("hedgerow::split_heads_backward");
  if (is_trained(norms.q) || is_trained(norms.k)) {
    const std::int64_t num_heads = gradient.q.size(1);
    const std::int64_t num_kv_heads = gradient.k.size(1);
    const at::Tensor heads =
        qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, -1}).transpose(1, 2).to(at::kFloat);
    const auto add = [&](const at::Tensor& weight, const at::Tensor& dy, std::int64_t first) {
      if (!is_trained(weight)) return;
      add_weight_gradient(weight,
                          rotate_back(dy.to(at::kFloat), cos, sin),
                          heads.narrow(1, first, dy.size(1)),
                          norms.eps);
    };
    add(norms.q, gradient.q, 0);
    add(norms.k, gradient.k, num_heads);
  }
  if (const auto* cuda = fused_for(gradient.q);
      cuda != nullptr && cuda->takes_heads(gradient.q, gradient.q.size(3))) {
    return cuda->split_heads_backward(
        {gradient.q, gradient.k, gradient.v},
        qkv,
        {gradient.q.size(1), gradient.k.size(1), cos, sin, norms.q, norms.k, norms.eps});
  }
  if (!fast(gradient.q)) return plain_split_heads_backward(gradient, qkv, cos, sin, norms);
  return cpu::split_heads_backward(
      {gradient.q.contiguous(), gradient.k.contiguous(), gradient.v.contiguous()},
      qkv,
      cos,
      sin,
      norms);
}

void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale) {
  RECORD_USER_SCOPE("hedgerow::add_scaled");
  if (fast(y)) {
    cpu::add_scaled(y, first, update, scale);
  } else {
    y.narrow(1, first, update.size(1)).add_(update, scale);
  }
}

CrossEntropy cross_entropy(const at::Tensor& logits,
                           const at::Tensor& tokens,
                           double scale,
                           bool with_gradient) {
  RECORD_USER_SCOPE("hedgerow::cross_entropy_of_tokens");
  return fast(logits) ? cpu::cross_entropy(logits.contiguous(), tokens, scale, with_gradient)
                      : plain_cross_entropy(logits, tokens, scale, with_gradient);
}

TeacherLoss teacher_loss(const at::Tensor& logits,
                         const at::Tensor& tokens,
                         const TopLogits& teacher,
                         const LossWeights& weights,
                         double scale,
                         bool with_gradient) {
  RECORD_USER_SCOPE("hedgerow::teacher_loss");
  return fast(logits) ? cpu::teacher_loss(
                            logits.contiguous(), tokens, teacher, weights, scale, with_gradient)
                      : plain_teacher_loss(logits, tokens, teacher, weights, scale, with_gradient);
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

at::Tensor plain_swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up) {
  const auto halves = gate_up.to(at::kFloat).chunk(2, -1);
  const at::Tensor dy = output_gradient.to(at::kFloat);
  const at::Tensor sigmoid = at::sigmoid(halves[0]);
  const at::Tensor silu = halves[0] * sigmoid;
  const at::Tensor gate = dy * halves[1] * (sigmoid + silu * (1.0 - sigmoid));
  return at::cat({gate, dy * silu}, -1).to(gate_up.scalar_type());
}

at::Tensor plain_split_heads_backward(const Qkv& gradient,
                                      const at::Tensor& qkv,
                                      const at::Tensor& cos,
                                      const at::Tensor& sin,
                                      const HeadNorms& norms) {
  const std::int64_t num_heads = gradient.q.size(1);
  const std::int64_t num_kv_heads = gradient.k.size(1);
  at::Tensor dq = rotate_back(gradient.q.to(at::kFloat), cos, sin);
  at::Tensor dk = rotate_back(gradient.k.to(at::kFloat), cos, sin);
  if (norms.q.defined() || norms.k.defined()) {
    const at::Tensor heads =
        qkv.unflatten(-1, {num_heads + 2 * num_kv_heads, -1}).transpose(1, 2).to(at::kFloat);
    if (norms.q.defined())
      dq = norm_gradient(dq, heads.narrow(1, 0, num_heads), norms.q, norms.eps);
    if (norms.k.defined())
      dk = norm_gradient(dk, heads.narrow(1, num_heads, num_kv_heads), norms.k, norms.eps);
  }
  const at::ScalarType dtype = gradient.q.scalar_type();
  return at::cat({dq.to(dtype), dk.to(dtype), gradient.v.to(dtype)}, 1).transpose(1, 2).flatten(2);
}

CrossEntropy plain_cross_entropy(const at::Tensor& logits,
                                 const at::Tensor& tokens,
                                 double scale,
                                 bool with_gradient) {
  const at::Tensor token = tokens.unsqueeze(1);
  at::Tensor log_p = at::log_softmax(logits, -1, at::kFloat);
  CrossEntropy result;
  result.loss_sum = -log_p.gather(1, token).sum(at::kDouble).item<double>();
  if (!with_gradient) return result;
  at::Tensor gradient = log_p.exp_();
  gradient.scatter_add_(1, token, at::full_like(token, -1.0, at::kFloat));
  result.gradient = gradient.mul_(scale).to(logits.scalar_type());
  return result;
}

TeacherLoss plain_teacher_loss(const at::Tensor& logits,
                               const at::Tensor& tokens,
                               const TopLogits& teacher,
                               const LossWeights& weights,
                               double scale,
                               bool with_gradient) {
  const at::Tensor token = tokens.unsqueeze(1), ids = teacher.ids.to(at::kLong);
  const at::Tensor log_q = at::log_softmax(logits, -1, at::kFloat);
  const at::Tensor p = teacher.log_probabilities.exp(), p_rest = teacher.log_rest.exp();
  const at::Tensor of_top = log_q.gather(1, ids);
  const at::Tensor of_rest =
      log_q.scatter(1, ids, -std::numeric_limits<double>::infinity()).logsumexp(-1);
  const at::Tensor kl_rest = at::where(p_rest > 0, p_rest * (teacher.log_rest - of_rest), 0.0);
  TeacherLoss result;
  result.ce_sum = -log_q.gather(1, token).sum(at::kDouble).item<double>();
  result.kl_sum = ((p * (teacher.log_probabilities - of_top)).sum(-1) + kl_rest)
                      .sum(at::kDouble)
                      .item<double>();
  if (!with_gradient) return result;
  const at::Tensor q = log_q.exp();
  const at::Tensor ratio = at::where(p_rest > 0, (teacher.log_rest - of_rest).exp(), 0.0);
  at::Tensor gradient = q * (weights.ce + weights.kl * (1.0 - ratio)).unsqueeze(1);
  gradient.scatter_(1, ids, (weights.ce + weights.kl) * q.gather(1, ids) - weights.kl * p);
  gradient.scatter_add_(1, token, at::full_like(token, -weights.ce, at::kFloat));
  result.gradient = gradient.mul_(scale).to(logits.scalar_type());
  return result;
}

}  // namespace hedgerow::worker
