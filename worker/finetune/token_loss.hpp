// The losses of tokens with their gradients in the logits, written out: computed in fp32, rounded
// once to the logits' dtype. No autograd. On the CPU vectorised loops (token_loss_cpu.cpp);
// elsewhere the plain_ forms run, which are also the tests' reference.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "worker/logits/top_logits.hpp"

namespace hedgerow::worker {

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
