#include "kernels/cuda/transfer_loss_cuda.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include "kernels/cuda/hybrid_attention_cuda.hpp"
#include "kernels/cuda/hybrid_backward_cuda.hpp"
#include "kernels/cuda/transfer/cross_entropy_launch.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::cuda {
namespace {

// What the rows' kernel leaves for the gradients.
struct Kept {
  at::Tensor features_q, normaliser, share, floor, totals;

  Kept(const HybridProblem& problem, const Prepared& p) {
    const auto [B, H, G, T, D] = problem.shape;
    const auto row = [&] { return at::empty({B, H, T}, problem.q.options().dtype(at::kFloat)); };
    features_q = at::empty({B, H, kTile * p.tiles, problem.F}, problem.q.options());
    normaliser = row();
    share = row();
    floor = row();
    totals = problem.windowed() ? row() : at::Tensor();
  }
  [[nodiscard]] CrossEntropyRows rows() const {
    return {floats(normaliser), floats(share), floats(floor), floats(totals)};
  }
};

FeatureMapWeights side_gradient(const HybridProblem& problem,
                                const Prepared& p,
                                CrossEntropyBackwardArguments a,
                                Side side) {
  const bool of_queries = side == Side::kQueries;
  const FeatureMapWeights& map = of_queries ? problem.map_q : problem.map_k;
  const std::int64_t heads = of_queries ? problem.shape.H : problem.key_heads;
  if (!map.layer.defined() && !map.bias.defined()) {
    return {};
  }
  const std::int64_t parts = (p.tiles + a.tiles_per_part - 1) / a.tiles_per_part;
  const Partials partials = make_partials(p, map, heads, true, parts, problem.q.options());
  a.layer = floats(partials.layer);
  a.bias = floats(partials.bias);
  launch_cross_entropy_backward(p.shape, side, a, p.stream);
  FeatureMapWeights sum = partials.fold();
  const double rows = static_cast<double>(problem.q.numel() / problem.shape.D);
  for (at::Tensor* x : {&sum.layer, &sum.bias}) {
    if (x->defined()) {
      x->div_(rows);
    }
  }
  return sum;
}

}  // namespace

std::string why_no_cross_entropy(const at::Tensor& q,
                                 const HybridParameters& parameters,
                                 const HybridOptions& options) {
  const c10::DeviceGuard guard(q.device());
  const std::string reason = hybrid_backend()->why_not(q, parameters, options, false);
  if (!reason.empty()) {
    return reason;
  }
  return why_not_shared("the fused cross-entropy",
                        cross_entropy_shared_bytes(kernel_shape(q, parameters, options)));
}

ParameterLoss cross_entropy_cuda(const HybridProblem& problem, bool with_gradients) {
  const c10::DeviceGuard guard(problem.q.device());
  Prepared p = prepare(problem);
  p.has_near = true;  // phi_k of every tile: the loss meets all pairs
  const auto [B, H, G, T, D] = problem.shape;
  const Walked keys = walk_keys(p, problem.q.options());
  CrossEntropyArguments a;
  a.inputs = p.inputs;
  a.far = keys.pointers();
  a.features_k = keys.features_pointer();
  a.clamp = static_cast<float>(kWeightClamp);
  const at::Tensor losses =
      at::empty({B, H, p.tiles, kWarpsOfTile}, problem.q.options().dtype(at::kFloat));
  a.losses = floats(losses);
  a.gradients = with_gradients;
  const std::optional<Kept> kept =
      with_gradients ? std::optional<Kept>(std::in_place, problem, p) : std::nullopt;
  if (kept) {
    a.features_q = bf16_out(kept->features_q);
    a.rows = kept->rows();
  }
  launch_cross_entropy(p.shape, a, p.stream);
  const auto rows = static_cast<double>(B * H * T);
  ParameterLoss out;
  out.loss = (losses.sum(at::kDouble) / rows).to(at::kFloat);
  if (kept) {
    CrossEntropyBackwardArguments backward;
    backward.inputs = p.inputs;
    backward.features_q = bf16(kept->features_q);
    backward.features_k = keys.features_pointer();
    backward.rows = kept->rows();
    backward.tiles_per_part = tiles_per_part(p);
    out.gradients.map_q = side_gradient(problem, p, backward, Side::kQueries);
    out.gradients.map_k = side_gradient(problem, p, backward, Side::kKeys);
    if (problem.windowed()) {
      out.gradients.window_factors = factor_gradient(problem, kept->totals).div_(rows);
    }
  }
  return out;
}

}  // namespace hedgerow::kernels::cuda
