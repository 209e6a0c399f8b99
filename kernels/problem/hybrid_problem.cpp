#include "kernels/problem/hybrid_problem.hpp"

#include <ATen/ATen.h>

namespace hedgerow::kernels {
namespace {

at::Tensor unit_stride(const at::Tensor& x) {
  return !x.defined() || x.stride(3) == 1 ? x.detach() : x.detach().contiguous();
}

}  // namespace

HybridProblem make_hybrid_problem(const at::Tensor& q,
                                  const at::Tensor& k,
                                  const at::Tensor& v,
                                  const HybridParameters& parameters,
                                  const HybridOptions& options) {
  HybridProblem problem;
  problem.shape = check_attention(q, k, v);
  const AttentionShape& shape = problem.shape;
  problem.F = check_parameters(parameters, options, shape.H, shape.G, shape.D, q.device());
  problem.key_heads = num_key_heads(parameters, shape.H);
  problem.projected = parameters.q.layer.defined() ? parameters.q.layer.size(2) : problem.shape.D;
  problem.options = options;
  problem.q = unit_stride(q);
  problem.k = unit_stride(k);
  problem.v = v.defined() ? unit_stride(v) : v;
  const auto detached = [&](const at::Tensor& x) {
    return x.defined() ? x.detach().to(problem.sum_dtype()).contiguous() : at::Tensor();
  };
  problem.map_q = {detached(parameters.q.layer), detached(parameters.q.bias)};
  problem.map_k = {detached(parameters.k.layer), detached(parameters.k.bias)};
  if (problem.windowed()) {
    problem.gate = at::sigmoid(detached(parameters.window_factors)).reshape({-1});
  }
  return problem;
}

HybridForward make_hybrid_forward(const HybridProblem& problem, bool keep_for_backward) {
  const auto [B, H, G, T, D] = problem.shape;
  const at::TensorOptions sums = problem.q.options().dtype(problem.sum_dtype());
  HybridForward out;
  out.denominator = at::empty({B, H, T}, sums);
  out.linear_mass = at::empty({B, H, T}, sums);
  if (problem.v.defined()) {
    // As the projection after it reads them: a token's heads side by side.
    const auto rows = [&](at::ScalarType dtype) {
      return at::empty({B, T, H, D}, sums.dtype(dtype)).transpose(1, 2);
    };
    out.y = rows(problem.output_dtype());
    if (keep_for_backward) {
      out.y_saved =
          problem.output_dtype() == problem.sum_dtype() ? out.y : rows(problem.sum_dtype());
    }
  }
  return out;
}

}  // namespace hedgerow::kernels
