#include "tests/bench/attention_problem.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <memory>

#include "kernels/decode.hpp"

namespace hedgerow::tests {

AttentionInputs AttentionInputs::in(at::ScalarType dtype) const {
  return {q.to(dtype), k.to(dtype), v.to(dtype), dy.to(dtype)};
}

AttentionInputs draw_inputs(const AttentionSize& size) {
  at::manual_seed(1);
  AttentionInputs inputs;
  inputs.q = at::randn({size.B, size.H, size.T, size.D});
  inputs.k = at::randn({size.B, size.G, size.T, size.D});
  inputs.v = at::randn({size.B, size.G, size.T, size.D});
  inputs.dy = at::randn(inputs.q.sizes());
  return inputs;
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

HybridCase draw_hybrid(const storage::AttentionSpec& spec, const AttentionSize& size) {
  at::manual_seed(2);
  HybridCase hybrid;
  hybrid.options = spec;
  const double scale = 1.0 / std::sqrt(static_cast<double>(size.D));
  const auto layer = [&](std::int64_t num_maps) {
    return at::randn({num_maps, size.D, spec.projected_dim()}).mul_(scale);
  };
  hybrid.parameters.q.layer = layer(size.H);
  hybrid.parameters.k.layer = layer(spec.num_key_maps(size.H, size.G));
  hybrid.parameters.window_factors = at::full({size.H}, spec.window_factor);
  for (at::Tensor& leaf : hybrid.trained()) leaf.set_requires_grad(true);
  return hybrid;
}

std::function<void()> decode_call(const AttentionInputs& inputs, const HybridCase& hybrid) {
  const c10::NoGradGuard no_grad;
  const std::int64_t T = inputs.k.size(2);
  const at::Tensor lengths = at::full({inputs.k.size(0)}, T, at::kLong);
  const auto state = std::make_shared<kernels::DecodeState>(
      kernels::prefill_state(inputs.k, inputs.v, lengths, hybrid.parameters, hybrid.options));
  const at::Tensor q = inputs.q.select(2, T - 1), k = inputs.k.select(2, T - 1),
                   v = inputs.v.select(2, T - 1);
  return [=] {
    const c10::NoGradGuard none_here;
    kernels::decode_step(q, k, v, *state, hybrid.parameters, hybrid.options);
  };
}

}  // namespace hedgerow::tests
