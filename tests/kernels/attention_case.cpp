#include "tests/kernels/attention_case.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

namespace hedgerow::kernels::testing {

std::string AttentionCase::name() const {
  return "B " + std::to_string(B) + " H " + std::to_string(H) + " G " + std::to_string(G) + " T " +
         std::to_string(T) + " D " + std::to_string(D) + " f " + std::to_string(f) + " dtype " +
         c10::toString(dtype) + " kind " +
         std::to_string(static_cast<int>(options.feature_map.kind)) + " negation " +
         std::to_string(options.feature_map.negation) + " layout " +
         std::to_string(static_cast<int>(options.layout)) + " w " +
         std::to_string(options.window_size) + " scale " + std::to_string(scale) + " seed " +
         std::to_string(seed);
}

AttentionInputs AttentionInputs::as(at::ScalarType inputs, at::ScalarType maps) const {
  const auto leaf = [](const at::Tensor& x, at::ScalarType dtype) {
    return x.defined() ? x.detach().to(dtype).clone().set_requires_grad(true) : x;
  };
  AttentionInputs copy;
  copy.q = leaf(q, inputs);
  copy.k = leaf(k, inputs);
  copy.v = leaf(v, inputs);
  copy.dy = dy;
  copy.parameters.q = {leaf(parameters.q.layer, maps), leaf(parameters.q.bias, maps)};
  copy.parameters.k = {leaf(parameters.k.layer, maps), leaf(parameters.k.bias, maps)};
  copy.parameters.window_factors = leaf(parameters.window_factors, maps);
  return copy;
}

std::vector<at::Tensor> AttentionInputs::leaves() const {
  return {q,
          k,
          v,
          parameters.q.layer,
          parameters.k.layer,
          parameters.window_factors,
          parameters.q.bias,
          parameters.k.bias};
}

AttentionInputs make_inputs(const AttentionCase& shape) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(shape.seed);
  const auto normal = [&](at::IntArrayRef sizes) {
    return at::randn(sizes, generator, at::kFloat);
  };
  AttentionInputs inputs;
  inputs.q = (normal({shape.B, shape.H, shape.T, shape.D}) * shape.scale).to(shape.dtype);
  inputs.k = (normal({shape.B, shape.G, shape.T, shape.D}) * shape.scale).to(shape.dtype);
  inputs.v = normal({shape.B, shape.G, shape.T, shape.D}).to(shape.dtype);
  inputs.dy = normal({shape.B, shape.H, shape.T, shape.D}).to(shape.dtype);
  if (shape.f > 0) {
    const double spread = 1.0 / std::sqrt(static_cast<double>(shape.D));
    inputs.parameters.q.layer = normal({shape.H, shape.D, shape.f}) * spread;
    inputs.parameters.k.layer = normal({shape.H, shape.D, shape.f}) * spread;
  }
  if (shape.bias) {
    const std::int64_t f = shape.f > 0 ? shape.f : shape.D;
    inputs.parameters.q.bias = normal({shape.H, f}) * 0.5;
    inputs.parameters.k.bias = normal({shape.H, f}) * 0.5;
  }
  if (shape.options.layout != WindowLayout::kNone) {
    inputs.parameters.window_factors = normal({shape.H}) - 1.0;
  }
  return inputs;
}

Outcome differentiate(const AttentionFunction& function, const AttentionInputs& inputs) {
  const at::Tensor value = function(inputs);
  std::vector<at::Tensor> present;
  for (const at::Tensor& leaf : inputs.leaves()) {
    if (leaf.defined()) {
      present.push_back(leaf);
    }
  }
  const at::Tensor seed =
      value.dim() == 0 ? at::ones_like(value) : inputs.dy.to(value.scalar_type());
  const std::vector<at::Tensor> found =
      torch::autograd::grad({value}, present, {seed}, std::nullopt, false, true);
  Outcome outcome{value.detach().to(at::kDouble), {}};
  std::size_t next = 0;
  for (const at::Tensor& leaf : inputs.leaves()) {
    at::Tensor gradient = leaf.defined() ? found[next++] : at::Tensor();
    outcome.gradients.push_back(gradient.defined() ? gradient.to(at::kDouble) : gradient);
  }
  return outcome;
}

void expect_within_twice(const at::Tensor& ours,
                         const at::Tensor& plain,
                         const at::Tensor& exact,
                         const std::string& what) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << what;
  const at::Tensor error = (ours.to(at::kDouble) - exact).abs();
  const double ours_error = error.max().item<double>();
  const double plain_error = (plain.to(at::kDouble) - exact).abs().max().item<double>();
  const double floor = 1e-6 * std::max(1.0, exact.abs().max().item<double>());
  EXPECT_TRUE(ours_error <= 2.0 * plain_error + floor)
      << what << ": error " << ours_error << " is over twice the plain version's " << plain_error
      << ", at element " << error.argmax().item<std::int64_t>() << " of " << ours.numel()
      << " (largest exact value " << exact.abs().max().item<double>() << ")";
}

}  // namespace hedgerow::kernels::testing
