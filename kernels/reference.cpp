#include "kernels/reference.hpp"

#include <ATen/ATen.h>

#include <cmath>

#include "kernels/hybrid_attention.hpp"
#include "kernels/problem/checks.hpp"
#include "kernels/problem/recall_cache.hpp"
#include "kernels/transfer_loss.hpp"

namespace hedgerow::kernels {
namespace {

at::ScalarType reference_dtype(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// q k^T / sqrt(D) with k's heads repeated.
at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const AttentionShape& shape) {
  const at::ScalarType dtype = reference_dtype(q);
  const at::Tensor keys = k.to(dtype).repeat_interleave(shape.group(), 1);
  return at::matmul(q.to(dtype), keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(shape.D));
}

// first [T, 1]: the first key of each query's window.
at::Tensor window_begins(const AttentionShape& shape,
                         const HybridOptions& options,
                         const at::Device& device) {
  at::Tensor begins = at::empty({shape.T, 1}, at::kLong);
  for (std::int64_t i = 0; i < shape.T; ++i) {
    begins.data_ptr<std::int64_t>()[i] = window_begin(options.window, options.window_size, i);
  }
  return begins.to(device);
}

// Pairs whose key the cache holds at the query, [B, H, T, T]: false without one.
at::Tensor recalled_pairs(const at::Tensor& k,
                          const at::Tensor& v,
                          const at::Tensor& key,
                          const at::Tensor& query,
                          const HybridParameters& parameters,
                          const HybridOptions& options,
                          const AttentionShape& shape) {
  const at::Tensor none = at::zeros({1, 1, 1, 1}, key.options().dtype(at::kBool));
  if (options.recall_cache == 0) return none;
  TORCH_CHECK(v.defined(), "hybrid attention: the cache's choices need v");
  at::Tensor kept;  // [choices, B, G, N]
  recall_attention(k.repeat_interleave(shape.group(), 1), k, v, parameters, options, &kept);
  if (kept.size(0) == 0) return none;
  const at::Tensor holds = kept.unsqueeze(-1).eq(key.reshape({-1})).any(3);  // [choices, B, G, T]
  const std::int64_t behind = options.window == WindowLayout::kSliding ? 0 : 1;
  const at::Tensor choice =
      query.reshape({-1}).div(options.window_size, "floor") - behind - 1;  // [T]
  const at::Tensor of_query = holds
                                  .index_select(0, choice.clamp_min(0))  // [T, B, G, T]
                                  .logical_and(choice.ge(0).reshape({-1, 1, 1, 1}));
  return of_query.permute({1, 2, 0, 3}).repeat_interleave(shape.group(), 1);
}

}  // namespace

HybridWeights hybrid_weights_reference(const at::Tensor& q,
                                       const at::Tensor& k,
                                       const at::Tensor& v,
                                       const HybridParameters& parameters,
                                       const HybridOptions& options) {
  const AttentionShape shape = check_attention(q, k, v);
  check_parameters(parameters, options, shape.H, shape.G, shape.D, q.device());
  const at::Tensor query = at::arange(shape.T, q.options().dtype(at::kLong)).unsqueeze(1);
  const at::Tensor key = query.transpose(0, 1);
  const at::Tensor begins = window_begins(shape, options, q.device());

  HybridWeights weights;
  const at::Tensor phi_q =
      apply_feature_map(q, parameters.q, options, shape.H, FeatureMapRole::kQuery);
  const std::int64_t key_heads = num_key_heads(parameters, shape.H);
  const at::Tensor phi_k =
      apply_feature_map(k, parameters.k, options, key_heads, FeatureMapRole::kKey)
          .repeat_interleave(shape.H / key_heads, 1);
  const at::Tensor sink = key.lt(options.num_sinks);
  const at::Tensor recalled = recalled_pairs(k, v, key, query, parameters, options, shape);
  const at::Tensor before =
      key.lt(begins).logical_and(key.le(query)).logical_and(~sink).logical_and(~recalled);
  weights.linear =
      at::matmul(phi_q, phi_k.transpose(-1, -2)).masked_fill(before.logical_not(), 0.0);
  if (options.window == WindowLayout::kNone) {
    weights.window = at::zeros_like(weights.linear);
    weights.denominator = weights.linear.sum(-1, true) + kLinearEpsilon;
    return weights;
  }
  const at::Tensor inside =
      key.ge(begins).logical_or(sink).logical_or(recalled).logical_and(key.le(query));
  const at::Tensor s = scores(q, k, shape).masked_fill(inside.logical_not(), -INFINITY);
  at::Tensor g =
      at::sigmoid(parameters.window_factors.to(s.scalar_type())).reshape({shape.H, 1, 1});
  if (options.linear_cap > 0) {
    g = g * ((begins - options.num_sinks).to(g.scalar_type()) / options.linear_cap).clamp_min(1.0);
  }
  weights.window = g * at::exp(s - at::amax(s, -1, true));
  weights.denominator = weights.window.sum(-1, true) + weights.linear.sum(-1, true);
  return weights;
}

at::Tensor hybrid_attention_reference(const at::Tensor& q,
                                      const at::Tensor& k,
                                      const at::Tensor& v,
                                      const HybridParameters& parameters,
                                      const HybridOptions& options) {
  const HybridWeights weights = hybrid_weights_reference(q, k, v, parameters, options);
  const AttentionShape shape = shape_of(q, k);
  const at::Tensor values = v.to(weights.linear.scalar_type()).repeat_interleave(shape.group(), 1);
  const at::Tensor y = at::matmul(weights.window + weights.linear, values) / weights.denominator;
  return options.fp32_output ? y : y.to(q.scalar_type());
}

at::Tensor transfer_cross_entropy_reference(const at::Tensor& q,
                                            const at::Tensor& k,
                                            const HybridParameters& parameters,
                                            const HybridOptions& options) {
  const HybridWeights weights = hybrid_weights_reference(q, k, {}, parameters, options);
  const AttentionShape shape = shape_of(q, k);
  const at::Tensor future = at::ones({shape.T, shape.T}, q.options().dtype(at::kBool)).triu(1);
  const at::Tensor teacher =
      at::softmax(scores(q, k, shape).masked_fill(future, -INFINITY), -1).detach();
  const at::Tensor student = (weights.window + weights.linear) / weights.denominator;
  return -(teacher * at::log(at::clamp_min(student, kWeightClamp))).sum(-1).mean();
}

}  // namespace hedgerow::kernels
