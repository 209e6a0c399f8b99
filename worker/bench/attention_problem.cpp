#include "worker/bench/attention_problem.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <memory>

#include "kernels/decode.hpp"

namespace hedgerow::worker::bench {

AttentionInputs draw_inputs(const AttentionSize& size,
                            BenchDirection direction,
                            const at::Device& device) {
  at::manual_seed(1);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  const std::int64_t queries = direction == BenchDirection::kDecode ? 1 : size.T;
  AttentionInputs inputs;
  inputs.q = at::randn({size.B, size.H, queries, size.D}, options);
  inputs.k = at::randn({size.B, size.G, size.T, size.D}, options);
  inputs.v = at::randn({size.B, size.G, size.T, size.D}, options);
  if (direction == BenchDirection::kBackward || direction == BenchDirection::kTraining)
    inputs.dy = at::randn(inputs.q.sizes(), options);
  return inputs;
}

const AttentionInputs& CastInputs::in(BenchDtype dtype) {
  if (dtype == BenchDtype::kFloat32) return fp32_;
  if (!bf16_) {
    const auto cast = [](const at::Tensor& x) { return x.defined() ? x.to(at::kBFloat16) : x; };
    bf16_ = {cast(fp32_.q), cast(fp32_.k), cast(fp32_.v), cast(fp32_.dy)};
  }
  return *bf16_;
}

std::vector<at::Tensor> HybridCase::trained() const {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& leaf : {parameters.q.layer,
                                 parameters.q.bias,
                                 parameters.k.layer,
                                 parameters.k.bias,
                                 parameters.window_factors}) {
    if (leaf.defined()) leaves.push_back(leaf);
  }
  return leaves;
}

HybridCase draw_hybrid(const storage::AttentionSpec& spec,
                       std::int64_t num_heads,
                       std::int64_t num_kv_heads,
                       std::int64_t head_dim,
                       const at::Device& device) {
  at::manual_seed(2);
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  HybridCase hybrid;
  hybrid.options = spec;
  const bool is_random = spec.row().one_draw;
  // Omega is drawn standard normal, and both sides of that map are one draw.
  const double scale = is_random ? 1.0 : 1.0 / std::sqrt(static_cast<double>(head_dim));
  for (kernels::FeatureMapWeights* side : {&hybrid.parameters.q, &hybrid.parameters.k}) {
    if (!spec.has_projection()) continue;
    const std::int64_t num_maps =
        side == &hybrid.parameters.k ? spec.num_key_maps(num_heads, num_kv_heads) : num_heads;
    side->layer = is_random && side == &hybrid.parameters.k
                      ? hybrid.parameters.q.layer.detach().clone()
                      : at::randn({num_maps, head_dim, spec.projected_dim()}, options).mul_(scale);
    if (spec.bias) side->bias = at::zeros({num_maps, spec.projected_dim()}, options);
  }
  if (spec.window != storage::WindowLayout::kNone)
    hybrid.parameters.window_factors = at::full({num_heads}, spec.window_factor, options);
  for (at::Tensor& leaf : hybrid.trained()) leaf.set_requires_grad(true);
  hybrid.map = {
      .F = kernels::feature_dim(hybrid.parameters.q, hybrid.options, head_dim),
      .f = spec.has_projection() ? spec.projected_dim() : 0,
      .layout = hybrid.options.window,
      .W = hybrid.options.window_size,
      .S = hybrid.options.num_sinks,
      .key_maps = spec.has_projection() ? spec.key_maps : storage::KeyMaps::kQueryHead};
  return hybrid;
}

std::function<void()> attention_call(const AttentionInputs& inputs,
                                     const Attention& attention,
                                     const std::vector<at::Tensor>& parameters,
                                     BenchDirection direction) {
  if (direction == BenchDirection::kForward) {
    return [inputs, attention] {
      const c10::NoGradGuard no_grad;
      attention(inputs.q, inputs.k, inputs.v);
    };
  }
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& x : {inputs.q, inputs.k, inputs.v})
    leaves.push_back(x.detach().set_requires_grad(true));
  const auto forward = [attention, q = leaves[0], k = leaves[1], v = leaves[2]] {
    return attention(q, k, v);
  };
  leaves.insert(leaves.end(), parameters.begin(), parameters.end());
  if (direction == BenchDirection::kTraining) {
    return [forward, leaves, dy = inputs.dy] {
      torch::autograd::grad({forward()}, leaves, {dy}, /*retain_graph=*/false, false, true);
    };
  }
  return [y = forward(), leaves, dy = inputs.dy] {
    torch::autograd::grad({y}, leaves, {dy}, /*retain_graph=*/true, false, true);
  };
}

std::function<void()> hybrid_call(const AttentionInputs& inputs,
                                  const HybridCase& hybrid,
                                  BenchDirection direction) {
  if (direction != BenchDirection::kDecode) {
    const auto attention = [hybrid](const auto& q, const auto& k, const auto& v) {
      return kernels::hybrid_attention(q, k, v, hybrid.parameters, hybrid.options);
    };
    return attention_call(inputs, attention, hybrid.trained(), direction);
  }
  const c10::NoGradGuard no_grad;
  const std::int64_t T = inputs.k.size(2);
  const at::Tensor lengths = at::full({inputs.k.size(0)}, T, inputs.k.options().dtype(at::kLong));
  const auto state = std::make_shared<kernels::DecodeState>(
      kernels::prefill_state(inputs.k, inputs.v, lengths, hybrid.parameters, hybrid.options));
  const at::Tensor q = inputs.q.select(2, 0), k = inputs.k.select(2, T - 1),
                   v = inputs.v.select(2, T - 1);
  return [=] {
    const c10::NoGradGuard none_here;
    kernels::decode_step(q, k, v, *state, hybrid.parameters, hybrid.options);
  };
}

}  // namespace hedgerow::worker::bench
