#include "worker/finetune/token_loss.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <limits>

#include "worker/finetune/token_loss_cpu.hpp"
#include "worker/model/layer/norm.hpp"

namespace hedgerow::worker {

CrossEntropy cross_entropy(const at::Tensor& logits,
                           const at::Tensor& tokens,
                           double scale,
                           bool with_gradient) {
  RECORD_USER_SCOPE("hedgerow::cross_entropy_of_tokens");
  return has_cpu_rows(logits)
             ? cpu::cross_entropy(logits.contiguous(), tokens, scale, with_gradient)
             : plain_cross_entropy(logits, tokens, scale, with_gradient);
}

TeacherLoss teacher_loss(const at::Tensor& logits,
                         const at::Tensor& tokens,
                         const TopLogits& teacher,
                         const LossWeights& weights,
                         double scale,
                         bool with_gradient) {
  RECORD_USER_SCOPE("hedgerow::teacher_loss");
  return has_cpu_rows(logits)
             ? cpu::teacher_loss(
                   logits.contiguous(), tokens, teacher, weights, scale, with_gradient)
             : plain_teacher_loss(logits, tokens, teacher, weights, scale, with_gradient);
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
