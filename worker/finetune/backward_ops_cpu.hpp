// The CPU forms of backward_ops.hpp: contiguous tensors of one dtype, bf16 or fp32, vectorised for
// the processor at hand. Used by backward_ops.cpp alone.
#pragma once

#include "worker/finetune/backward_ops.hpp"

namespace hedgerow::worker::cpu {

at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps);
at::Tensor swiglu_backward(const at::Tensor& output_gradient, const at::Tensor& gate_up);
at::Tensor split_heads_backward(const Qkv& gradient,
                                const at::Tensor& qkv,
                                const at::Tensor& cos,
                                const at::Tensor& sin,
                                const HeadNorms& norms);
void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale);
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
