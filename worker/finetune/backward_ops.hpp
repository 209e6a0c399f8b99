// Gradients of worker/model/elementwise.hpp, written out because autograd over it would keep and
// convert far more than is needed: of the base at most the norms have gradients. Computed in
// fp32, rounded once to the dtype of the activation; layouts as there. No autograd. A norm's weight
// is trained where its .grad() is defined: its gradient, the sum over rows of dy * x_hat in fp32,
// is added to that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/logits/top_logits.hpp"
#include "worker/model/elementwise.hpp"

namespace hedgerow::worker {

[[nodiscard]] inline bool is_trained(const at::Tensor& weight) {
  return weight.defined() && weight.grad().defined();
}

// residual_gradient + the gradient of rms_norm(x, weight, eps) in x, given that of its output. x
// [..., M]; output_gradient in x's dtype; `low_rank` [rows, M] fp32 or undefined is added
// to it first.
at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps);

// The gradient of swiglu in gate_up [..., 2 I], given that of its output [..., I].
at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);

// The gradient of split_heads in qkv [B, T, (H + 2 G) D], given those of q, k, v. qkv itself is
// read only where q_norm and k_norm are defined and may be undefined otherwise.
at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const at::Tensor& cos,
                                const at::Tensor& sin,
                                const HeadNorms& norms);

// columns first .. first + update.size(1) of y [rows, N] += scale * update, in place; update [rows,
// n] fp32, contiguous.
void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale);

// logits [n, V], tokens [n] int64: the sum of -log softmax(logits)[token], and the gradient of
// scale times that in the logits, in their dtype (undefined unless asked for). The sum runs in row
// order.
struct CrossEntropy {
  double loss_sum = 0.0;
  at::Tensor gradient;
};
CrossEntropy cross_entropy(const at::Tensor& logits,
                           const at::Tensor& tokens,
                           double scale,
                           bool with_gradient);

// What the loss of a position is made of: `ce` times the cross-entropy of the text's next token
// plus `kl` times the KL divergence from the teacher's probabilities, over its top tokens and the
// rest as one: sum_i p_i (log p_i - log q_i) + p_rest (log p_rest - log q_rest).
struct LossWeights {
  double ce = 1.0, kl = 0.0;
};

// logits [n, V], tokens [n] int64, teacher's [n, K]: both sums without their weights, and the
// gradient of scale times the weighted loss in the logits, in their dtype (undefined unless asked
// for). The sums run in row order.
struct TeacherLoss {
  double ce_sum = 0.0, kl_sum = 0.0;
  at::Tensor gradient;
};
TeacherLoss teacher_loss(const at::Tensor& logits,
                         const at::Tensor& tokens,
                         const TopLogits& teacher,
                         const LossWeights& weights,
                         double scale,
                         bool with_gradient);

// The same by ATen operations in fp32, on any device.
at::Tensor plain_rms_norm_backward(const at::Tensor& residual_gradient,
                                   const at::Tensor& output_gradient,
                                   const at::Tensor& low_rank,
                                   const at::Tensor& x,
                                   const at::Tensor& weight,
                                   double eps);
at::Tensor plain_swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);
at::Tensor plain_split_heads_backward(const Qkv& gradient,
                                      const at::Tensor& qkv,
                                      const at::Tensor& cos,
                                      const at::Tensor& sin,
                                      const HeadNorms& norms);
CrossEntropy plain_cross_entropy(const at::Tensor& logits,
                                 const at::Tensor& tokens,
                                 double scale,
                                 bool with_gradient);
TeacherLoss plain_teacher_loss(const at::Tensor& logits,
                               const at::Tensor& tokens,
                               const TopLogits& teacher,
                               const LossWeights& weights,
                               double scale,
                               bool with_gradient);

}  // namespace hedgerow::worker
