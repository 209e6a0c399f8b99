// RMSNorm and the residual additions of a layer, one pass over memory each, with their gradients.
// Without autograd: every value is computed in fp32 and rounded once, where transformers rounds
// after each operation in bf16; in fp32 the two agree to the last bits. A row's result depends on
// that row alone, never on the number of rows or of threads. On the CPU these are hand-written
// loops (norm_cpu.cpp), on CUDA in bf16 fused kernels (kernels/cuda/elementwise_cuda.hpp);
// elsewhere the plain_ forms run, which are also the tests' reference.
//
// Rows are tokens: B sequences of T tokens are [B, T, ...], contiguous. dtype: bf16 or fp32. Norm
// weights are fp32. A norm's weight is trained where its .grad() is defined: its gradient, the sum
// over rows of dy * x_hat in fp32, is added to that.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/cuda/elementwise_cuda.hpp"

namespace hedgerow::worker {

// Whether the CPU loops take these rows: on the CPU, fp32 or bf16.
[[nodiscard]] bool has_cpu_rows(const at::Tensor& rows);
// The fused CUDA backend where it takes these rows, else null.
[[nodiscard]] const kernels::cuda::ElementwiseBackend* fused_for(const at::Tensor& rows);
[[nodiscard]] inline bool is_trained(const at::Tensor& weight) {
  return weight.defined() && weight.grad().defined();
}

// x / sqrt(mean(x^2) + eps) * weight over the last dimension; x [..., M], weight [M] fp32 -> x's
// dtype.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);

struct Normed {
  at::Tensor hidden_states;  // residual + update, rounded to their dtype
  at::Tensor normed;         // rms_norm of the rounded sum
};
Normed add_rms_norm(const at::Tensor& residual,
                    const at::Tensor& update,
                    const at::Tensor& weight,
                    double eps);

// residual + update, rounded to `stream` (bf16, fp16 or fp32) and returned in residual's dtype.
at::Tensor add_round(const at::Tensor& residual, const at::Tensor& update, at::ScalarType stream);

// columns first .. first + update.size(1) of y [rows, N] += scale * update, in place; update [rows,
// n] fp32, contiguous.
void add_scaled(const at::Tensor& y, std::int64_t first, const at::Tensor& update, double scale);

// residual_gradient + the gradient of rms_norm(x, weight, eps) in x, given that of its output. x
// [..., M]; output_gradient in x's dtype; `low_rank` [rows, M] fp32 or undefined is added to it
// first.
at::Tensor rms_norm_backward(const at::Tensor& residual_gradient,
                             const at::Tensor& output_gradient,
                             const at::Tensor& low_rank,
                             const at::Tensor& x,
                             const at::Tensor& weight,
                             double eps);

// The parts of that, fp32. With r = 1 / sqrt(mean x^2 + eps): dx = r (w dy) - x r^3 mean(w dy x).
at::Tensor norm_gradient(const at::Tensor& dy,
                         const at::Tensor& x,
                         const at::Tensor& weight,
                         double eps);
// dy and x [..., n] of the same shape.
void add_weight_gradient(const at::Tensor& weight,
                         const at::Tensor& dy,
                         const at::Tensor& x,
                         double eps);

// The same by ATen operations in fp32, on any device.
at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
at::Tensor plain_add_round(const at::Tensor& residual,
                           const at::Tensor& update,
                           at::ScalarType stream);
at::Tensor plain_rms_norm_backward(const at::Tensor& residual_gradient,
                                   const at::Tensor& output_gradient,
                                   const at::Tensor& low_rank,
                                   const at::Tensor& x,
                                   const at::Tensor& weight,
                                   double eps);

}  // namespace hedgerow::worker
