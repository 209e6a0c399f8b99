// From what reaches every query to the gradients of a problem, by the kernels of kernels/cuda/. The
// hybrid's backward makes the rows from dy; attention transfer's forward writes them itself.
#pragma once

#include "kernels/cuda/hybrid_problem_cuda.hpp"

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

// Partial gradients of one side's map, a part of the tiles each; undefined where not needed.
struct Partials {
  at::Tensor layer, bias;  // [parts, B, H or U, D, f], [parts, B, H or U, f]
  [[nodiscard]] FeatureMapWeights fold() const;
};

Partials make_partials(const Prepared& p,
                       const FeatureMapWeights& map,
                       std::int64_t heads,
                       bool needed,
                       std::int64_t parts,
                       const at::TensorOptions& options);

// Tiles of a part: enough parts for the card, and partial gradients no more than that.
[[nodiscard]] int tiles_per_part(const Prepared& p);

// [H] from t_i of every query, summed in fp64.
[[nodiscard]] at::Tensor factor_gradient(const HybridProblem& problem, const at::Tensor& totals);

// p of the same problem, keys its walk. Partial results are folded in a fixed order.
HybridGradients gradients_of(const HybridProblem& problem,
                             Prepared& p,
                             const Walked& keys,
                             const RowGradients& rows,
                             const HybridNeeds& needs);

}  // namespace hedgerow::kernels::cuda
