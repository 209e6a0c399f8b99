// A tile holds n queries and all keys up to its last. With t the teacher's weights, w = p or l the
// student's, a = w / Z, and c = t where a >= 1e-12, else 0: L = -sum t log max(a, 1e-12) / rows and
// dL/dw = (sum_j c / Z - c / w) / rows. Only linear pairs have parameters in them; the window
// factor's gradient follows from dphi_q, as in hybrid_backward_walker.hpp.
#include "kernels/aten/transfer_loss_aten.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/aten/chunks_aten.hpp"
#include "kernels/problem/hybrid_parameters.hpp"

namespace hedgerow::kernels::aten {
namespace {

class LossPart {
 public:
  LossPart(const Part& part, double rows, bool with_gradients)
      : part_(part),
        problem_(part.problem),
        rows_(rows),
        map_q_(problem_.q,
               problem_.map_q,
               problem_.options,
               part.num_h,
               FeatureMapRole::kQuery,
               false,
               with_gradients),
        map_k_(problem_.k,
               problem_.map_k,
               problem_.options,
               problem_.key_heads,
               FeatureMapRole::kKey,
               false,
               with_gradients),
        keys_(problem_.k.to(problem_.sum_dtype())),
        tokens_(at::arange(problem_.shape.T, problem_.q.options().dtype(at::kLong))) {
    if (with_gradients) {
      dphi_q_ = at::zeros_like(map_q_.phi());
      dphi_k_ = at::zeros_like(map_k_.phi());
    }
    loss_ = at::zeros({}, problem_.q.options().dtype(at::kDouble));
  }

  void run(ParameterLoss& out) {
    const std::int64_t T = problem_.shape.T;
    const std::int64_t tile = query_tile(part_.num_b * part_.num_h, T);
    for (std::int64_t begin = 0; begin < T; begin += tile) {
      walk_tile(begin, std::min(tile, T - begin));
    }
    out.loss.add_(loss_);
    if (dphi_q_.defined()) {
      store(out.gradients);
    }
  }

 private:
  void walk_tile(std::int64_t begin, std::int64_t count) {
    const std::int64_t end = begin + count, R = problem_.shape.group();
    const double scale = 1.0 / std::sqrt(static_cast<double>(problem_.shape.D));
    const at::Tensor query = tokens_.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor key = tokens_.narrow(0, 0, end);
    const at::Tensor first = window_begins(query, problem_.options), future = key.gt(query);
    const at::Tensor sink = key.lt(problem_.options.num_sinks);
    const at::Tensor not_linear = key.ge(first) | future | sink;

    const at::Tensor q = problem_.q.narrow(2, begin, count).to(keys_.scalar_type()).mul(scale);
    at::Tensor scores = at::matmul(q.unflatten(1, {problem_.shape.G, R}).flatten(2, 3),
                                   keys_.narrow(2, 0, end).transpose(-1, -2))
                            .unflatten(2, {R, count})
                            .flatten(1, 2);
    const at::Tensor teacher = at::softmax(scores.masked_fill(future, -INFINITY), -1);
    const at::Tensor phi_q = map_q_.phi().narrow(2, begin, count);
    const at::Tensor phi_k =
        map_k_.phi().narrow(2, 0, end).repeat_interleave(problem_.key_group(), 1);
    at::Tensor student = at::matmul(phi_q, phi_k.transpose(-1, -2)).masked_fill_(not_linear, 0.0);
    if (problem_.windowed()) {
      scores.masked_fill_((key.lt(first) & key.ge(problem_.options.num_sinks)) | future, -INFINITY);
      at::Tensor gate = problem_.gate.reshape({-1, 1, 1});
      const at::Tensor gains = window_gains(query, problem_.options, gate.scalar_type());
      if (gains.defined()) gate = gate * gains;
      student.add_(scores.sub_(scores.amax(-1, true)).exp_().mul_(gate));
    }
    const at::Tensor denominator =
        student.sum(-1, true).add_(problem_.windowed() ? 0.0 : kLinearEpsilon);
    const at::Tensor normalised = student / denominator;
    loss_.sub_((teacher * normalised.clamp_min(kWeightClamp).log_()).sum(-1).sum(at::kDouble));
    if (dphi_q_.defined()) {
      // Below the clamp there is no gradient; that is also where w = 0 would be divided by.
      const at::Tensor below = normalised.lt(kWeightClamp);
      const at::Tensor counted = teacher.masked_fill(below, 0.0).sum(-1, true);
      const at::Tensor da = (counted / denominator - (teacher / student).masked_fill_(below, 0.0))
                                .mul_(1.0 / rows_)
                                .masked_fill_(not_linear, 0.0);
      dphi_q_.narrow(2, begin, count).copy_(at::matmul(da, phi_k));
      dphi_k_.narrow(2, 0, end).add_(at::matmul(da.transpose(-1, -2), phi_q)
                                         .unflatten(1, {problem_.key_heads, problem_.key_group()})
                                         .sum(2));
    }
  }

  void store(const HybridGradients& out) const {
    const auto gradients_q = map_q_.backward(dphi_q_), gradients_k = map_k_.backward(dphi_k_);
    part_.add_query_map(out.map_q, gradients_q.weights);
    part_.add_key_map(out.map_k, gradients_k.weights);
    if (problem_.windowed()) {
      const at::Tensor total =
          (map_q_.phi() * dphi_q_).sum(-1).sum(at::IntArrayRef{0, 2}, false, at::kDouble).neg();
      part_.add_heads(out.window_factors, (1 - problem_.gate.to(at::kDouble)) * total);
    }
  }

  const Part& part_;
  const HybridProblem& problem_;
  double rows_;
  DifferentiableMap map_q_, map_k_;
  at::Tensor keys_, tokens_, dphi_q_, dphi_k_, loss_;
};

}  // namespace

at::Tensor mean_square_aten(const at::Tensor& y_pred, const at::Tensor& y_true) {
  return (y_pred.to(sum_dtype_of(y_pred)) - y_true).square_().mean();
}

at::Tensor mean_square_gradient_aten(const at::Tensor& y_pred,
                                     const at::Tensor& y_true,
                                     const at::Tensor& scale) {
  const at::Tensor difference = y_pred.to(sum_dtype_of(y_pred)) - y_true;
  const at::Tensor factor = scale * (2.0 / static_cast<double>(y_pred.numel()));
  return (difference * factor).to(y_pred.scalar_type());
}

ParameterLoss cross_entropy_aten(const HybridProblem& problem,
                                 bool with_gradients,
                                 std::int64_t part_elements) {
  const auto& [B, H, G, T, D] = problem.shape;
  const auto like = [&](const at::Tensor& x) {
    return with_gradients && x.defined() ? at::zeros_like(x) : at::Tensor();
  };
  ParameterLoss out;
  out.gradients.map_q = {like(problem.map_q.layer), like(problem.map_q.bias)};
  out.gradients.map_k = {like(problem.map_k.layer), like(problem.map_k.bias)};
  out.gradients.window_factors = like(problem.gate);
  out.loss = at::zeros({}, problem.q.options().dtype(at::kDouble));
  const auto rows = static_cast<double>(B * H * T);
  for (const Part& part :
       parts_of(problem, problem.shape.group() * T * kFewestQueries, part_elements)) {
    LossPart(part, rows, with_gradients).run(out);
  }
  out.loss = (out.loss / rows).to(problem.sum_dtype());
  return out;
}

}  // namespace hedgerow::kernels::aten
