// Attention cross-entropy on the CPU, value and gradients in one walk: the loss is a scalar and
// what it trains is small, so that the gradients are kept from the forward and the backward only
// scales them.
#pragma once

#include "kernels/cpu/hybrid_attention_cpu.hpp"
#include "kernels/problem/parameter_loss.hpp"

namespace hedgerow::kernels::cpu {

// mean (y_pred - y_true)^2 over fp32 or bf16 elements -> scalar fp32; summed in blocks of a fixed
// size, so that the value does not depend on the number of threads.
at::Tensor mean_square_cpu(const at::Tensor& y_pred, const at::Tensor& y_true);
// scale * 2 (y_pred - y_true) / elements, of y_pred's dtype and layout.
at::Tensor mean_square_gradient_cpu(const at::Tensor& y_pred,
                                    const at::Tensor& y_true,
                                    double scale);

// problem.v is not read.
ParameterLoss cross_entropy_cpu(const TiledProblem& problem, bool with_gradients);

}  // namespace hedgerow::kernels::cpu
