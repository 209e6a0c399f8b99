// Attention cross-entropy on the CPU, value and gradients in one walk: the loss is a scalar and
// what it trains is small, so that the gradients are kept from the forward and the backward only
// scales them.
#pragma once

#include "kernels/hybrid_attention_cpu.hpp"

namespace hedgerow::kernels::cpu {

struct CrossEntropy {
  at::Tensor loss;            // scalar fp32
  HybridGradients gradients;  // of the loss by the maps and window_factors; q, k, v undefined
};

// problem.v is not read.
CrossEntropy cross_entropy_cpu(const HybridProblem& problem, bool with_gradients);

}  // namespace hedgerow::kernels::cpu
