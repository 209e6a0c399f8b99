// The CPU forms of token_loss.hpp: contiguous logits, bf16 or fp32, vectorised for the processor at
// hand. Used by token_loss.cpp alone.
#pragma once

#include "worker/finetune/token_loss.hpp"

namespace hedgerow::worker::cpu {

CrossEntropy cross_entropy(const at::Tensor& logits,
                           const at::Tensor& tokens,
                           double scale,
                           bool with_gradient);
TeacherLoss teacher_loss(const at::Tensor& logits,
                         const at::Tensor& tokens,
                         const TopLogits& teacher,
                         const LossWeights& weights,
                         double scale,
                         bool with_gradient);

}  // namespace hedgerow::worker::cpu
