// From what reaches every query to the gradients of a problem, by the kernels of kernels/cuda/. The
// hybrid's backward makes the rows from dy; attention transfer's forward writes them itself.
#pragma once

#include "kernels/hybrid_problem_cuda.hpp"

namespace hedgerow::kernels::cuda {

// dn = dy / Z [B, H, T, D] bf16, beta = -dn.y [B, H, T], totals t_i [B, H, T] (undefined with
// kNone); maxima and ties of the window [B, H, T], for dq, dk and dv alone.
struct RowGradients {
  at::Tensor dn, beta, totals, maxima, ties;
};

RowGradients prepare_rows(const HybridProblem& problem,
                          const HybridForward& forward,
                          const at::Tensor& dy,
                          Stream stream);

// p of the same problem, keys its walk. Partial results are folded in a fixed order.
HybridGradients gradients_of(const HybridProblem& problem,
                             Prepared& p,
                             const Walked& keys,
                             const RowGradients& rows,
                             const HybridNeeds& needs);

}  // namespace hedgerow::kernels::cuda
