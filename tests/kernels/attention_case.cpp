#include "tests/kernels/attention_case.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "kernels/cpu/tile_products.hpp"
#include "kernels/reference.hpp"
#include "kernels/transfer_loss.hpp"
#include "kernels/vector_math.hpp"

namespace hedgerow::kernels::testing {

std::string AttentionCase::name() const {
  return "B " + std::to_string(B) + " H " + std::to_string(H) + " G " + std::to_string(G) + " T " +
         std::to_string(T) + " D " + std::to_string(D) + " f " + std::to_string(f) + " dtype " +
         c10::toString(dtype) + " kind " + std::to_string(static_cast<int>(options.feature_map)) +
         " negation " + std::to_string(options.negation) + " layout " +
         std::to_string(static_cast<int>(options.window)) + " w " +
         std::to_string(options.window_size) + " sinks " + std::to_string(options.num_sinks) +
         " linear_cap " + std::to_string(options.linear_cap) + " shares_key_maps " +
         std::to_string(shares_key_maps) + " scale " + std::to_string(scale) + " seed " +
         std::to_string(seed);
}

AttentionInputs AttentionInputs::as(at::ScalarType inputs,
                                    at::ScalarType maps,
                                    at::DeviceType device) const {
  const auto leaf = [&](const at::Tensor& x, at::ScalarType dtype) {
    return x.defined() ? x.detach().to(device, dtype).clone().set_requires_grad(true) : x;
  };
  AttentionInputs copy;
  copy.q = leaf(q, inputs);
  copy.k = leaf(k, inputs);
  copy.v = leaf(v, inputs);
  copy.dy = dy.to(device);
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
  const std::int64_t key_heads = shape.shares_key_maps ? shape.G : shape.H;
  if (shape.f > 0) {
    const double spread = 1.0 / std::sqrt(static_cast<double>(shape.D));
    inputs.parameters.q.layer = normal({shape.H, shape.D, shape.f}) * spread;
    inputs.parameters.k.layer = normal({key_heads, shape.D, shape.f}) * spread;
  }
  if (shape.bias) {
    const std::int64_t f = shape.f > 0 ? shape.f : shape.D;
    inputs.parameters.q.bias = normal({shape.H, f}) * 0.5;
    inputs.parameters.k.bias = normal({key_heads, f}) * 0.5;
  }
  if (shape.options.window != WindowLayout::kNone) {
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
  Outcome outcome{value.detach().to(at::kCPU, at::kDouble), {}};
  std::size_t next = 0;
  for (const at::Tensor& leaf : inputs.leaves()) {
    at::Tensor gradient = leaf.defined() ? found[next++] : at::Tensor();
    outcome.gradients.push_back(gradient.defined() ? gradient.to(at::kCPU, at::kDouble) : gradient);
  }
  return outcome;
}

Outcome hybrid_outcome(const AttentionCase& shape, const AttentionInputs& inputs) {
  return differentiate(
      [&](const AttentionInputs& x) {
        return hybrid_attention(x.q, x.k, x.v, x.parameters, shape.options);
      },
      inputs.as(shape.dtype, at::kFloat));
}

void expect_within_twice(const at::Tensor& ours,
                         const at::Tensor& plain,
                         const at::Tensor& exact,
                         const std::string& what,
                         double factor) {
  ASSERT_EQ(ours.sizes(), exact.sizes()) << what;
  const at::Tensor error = (ours.to(at::kDouble) - exact).abs();
  const double ours_error = error.max().item<double>();
  const double plain_error = (plain.to(at::kDouble) - exact).abs().max().item<double>();
  const double floor = 1e-6 * std::max(1.0, exact.abs().max().item<double>());
  EXPECT_TRUE(ours_error <= factor * plain_error + floor)
      << what << ": error " << ours_error << " is over " << factor << " x the plain version's "
      << plain_error << ", at element " << error.argmax().item<std::int64_t>() << " of "
      << ours.numel() << " (largest exact value " << exact.abs().max().item<double>() << ")";
}

void expect_outcome(const AttentionCase& shape,
                    const Outcome& ours,
                    const Outcome& plain,
                    const Outcome& exact) {
  expect_within_twice(ours.value, plain.value, exact.value, shape.name() + ", value");
  for (std::size_t i = 0; i < kLeafNames.size(); ++i) {
    ASSERT_EQ(ours.gradients[i].defined(), exact.gradients[i].defined())
        << shape.name() << ", d" << kLeafNames[i];
    if (exact.gradients[i].defined()) {
      expect_within_twice(ours.gradients[i],
                          plain.gradients[i],
                          exact.gradients[i],
                          shape.name() + ", d" + kLeafNames[i]);
    }
  }
}

Outcome reference_outcome(const AttentionCase& shape,
                          const AttentionInputs& inputs,
                          at::ScalarType dtype) {
  return differentiate(
      [&](const AttentionInputs& x) {
        return hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape.options);
      },
      inputs.as(dtype, dtype == at::kDouble ? at::kDouble : at::kFloat));
}

at::Tensor plain_bfloat16_weights(const AttentionInputs& x, const HybridOptions& options) {
  const std::int64_t H = x.q.size(1), T = x.q.size(2), group = H / x.k.size(1);
  const at::Tensor keys = x.k.repeat_interleave(group, 1);
  // A key map of a kv head is that of each of its query heads.
  const auto of_query_heads = [H](const at::Tensor& map) {
    return map.defined() ? map.repeat_interleave(H / map.size(0), 0) : map;
  };
  const FeatureMapWeights map_k{of_query_heads(x.parameters.k.layer),
                                of_query_heads(x.parameters.k.bias)};
  const auto features =
      [&](const at::Tensor& rows, const FeatureMapWeights& weights, FeatureMapRole role) {
        if (options.feature_map == FeatureMapKind::kPositiveRandom) {
          const FeatureMapWeights rounded{weights.layer.to(at::kBFloat16).to(at::kFloat), {}};
          return apply_feature_map(rows, rounded, options, H, role).to(at::kBFloat16);
        }
        at::Tensor z =
            weights.layer.defined() ? at::matmul(rows, weights.layer.to(at::kBFloat16)) : rows;
        z = z.to(at::kFloat);
        if (weights.bias.defined()) {
          z = z + weights.bias.unsqueeze(1);
        }
        return apply_feature_map(z, {}, options, H, role).to(at::kBFloat16);
      };
  std::vector<std::int64_t> first(static_cast<std::size_t>(T));
  for (std::int64_t i = 0; i < T; ++i) {
    first[static_cast<std::size_t>(i)] = window_begin(options.window, options.window_size, i);
  }
  const at::Tensor begins = at::tensor(first).unsqueeze(1);
  const at::Tensor i = at::arange(T).unsqueeze(1), j = at::arange(T).unsqueeze(0);
  const at::Tensor causal = j.le(i), sinks = j.lt(options.num_sinks);
  const at::Tensor in_linear = j.lt(begins).logical_and(causal).logical_and(sinks.logical_not());
  const at::Tensor in_window = causal.logical_and(in_linear.logical_not());
  at::Tensor linear = at::matmul(features(x.q, x.parameters.q, FeatureMapRole::kQuery),
                                 features(keys, map_k, FeatureMapRole::kKey).transpose(-1, -2))
                          .to(at::kFloat)
                          .masked_fill(in_linear.logical_not(), 0.0);
  if (options.linear_cap > 0) {  // as a factor on phi_q, where the backends have one on the gate
    linear =
        linear * (options.linear_cap / (begins - options.num_sinks).to(at::kFloat).clamp_min(1.0))
                     .clamp_max(1.0);
  }
  at::Tensor weights = linear;
  if (options.window != WindowLayout::kNone) {
    const at::Tensor scores =
        (at::matmul(x.q, keys.transpose(-1, -2)) / std::sqrt(static_cast<double>(x.q.size(3))))
            .to(at::kFloat)
            .masked_fill(in_window.logical_not(), -INFINITY);
    const at::Tensor gate = at::sigmoid(x.parameters.window_factors).reshape({H, 1, 1});
    weights = linear + gate * at::exp(scores - scores.amax(-1, true));
  }
  return weights / weights.sum(-1, true);
}

at::Tensor plain_bfloat16_hybrid(const AttentionInputs& x, const HybridOptions& options) {
  const at::Tensor values = x.v.repeat_interleave(x.q.size(1) / x.k.size(1), 1);
  return at::matmul(plain_bfloat16_weights(x, options).to(at::kBFloat16), values);
}

at::Tensor plain_bfloat16_cross_entropy(const AttentionInputs& inputs,
                                        const HybridOptions& options) {
  AttentionInputs x = inputs;
  x.q = x.q.detach();
  x.k = x.k.detach();
  const std::int64_t T = x.q.size(2), group = x.q.size(1) / x.k.size(1);
  const at::Tensor scores = (at::matmul(x.q, x.k.repeat_interleave(group, 1).transpose(-1, -2)) /
                             std::sqrt(static_cast<double>(x.q.size(3))))
                                .to(at::kFloat)
                                .masked_fill(at::ones({T, T}, at::kBool).triu(1), -INFINITY);
  const at::Tensor student = plain_bfloat16_weights(x, options);
  return -(at::softmax(scores, -1) * at::log(at::clamp_min(student, kWeightClamp))).sum(-1).mean();
}

namespace {

// Before a test of a process computes on several threads, as the worker's main() does.
[[maybe_unused]] const bool kIsResolved = (resolve_vector_math(), true);

bool multiplies_in_bfloat16(const AttentionCase& shape) {
  return cpu::products_for(shape.dtype) == cpu::Products::kBFloat16 &&
         !shape.options.row().fp32_products;
}

}  // namespace

Outcome plain_hybrid_outcome(const AttentionCase& shape, const AttentionInputs& inputs) {
  if (!multiplies_in_bfloat16(shape)) return reference_outcome(shape, inputs, shape.dtype);
  return differentiate(
      [&](const AttentionInputs& x) { return plain_bfloat16_hybrid(x, shape.options); },
      inputs.as(shape.dtype, at::kFloat));
}

void expect_entry_outcome(const AttentionCase& shape, Outcome ours, Outcome plain, Outcome exact) {
  constexpr std::size_t kFactors = 5;
  constexpr double kOfSums = 10.0;
  if (multiplies_in_bfloat16(shape)) {
    if (exact.value.dim() == 0) {
      expect_within_twice(ours.value, plain.value, exact.value, shape.name() + ", value", kOfSums);
      ours.value = plain.value = exact.value;
    }
    if (exact.gradients[kFactors].defined() && ours.gradients[kFactors].defined()) {
      expect_within_twice(ours.gradients[kFactors],
                          plain.gradients[kFactors],
                          exact.gradients[kFactors],
                          shape.name() + ", d" + kLeafNames[kFactors],
                          kOfSums);
      ours.gradients[kFactors] = exact.gradients[kFactors];
    }
  }
  expect_outcome(shape, ours, plain, exact);
}

Outcome plain_cross_entropy_outcome(const AttentionCase& shape, const AttentionInputs& inputs) {
  return differentiate(
      [&](const AttentionInputs& x) {
        return multiplies_in_bfloat16(shape)
                   ? plain_bfloat16_cross_entropy(x, shape.options)
                   : transfer_cross_entropy_reference(
                         x.q.detach(), x.k.detach(), x.parameters, shape.options);
      },
      inputs.as(shape.dtype, at::kFloat));
}

void expect_finite_differences(const AttentionFunction& function,
                               const AttentionInputs& inputs,
                               const std::string& what) {
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(23);
  const Outcome outcome = differentiate(function, inputs);
  const std::vector<at::Tensor> leaves = inputs.leaves();
  const c10::NoGradGuard no_grad;
  const auto loss = [&] {
    const at::Tensor value = function(inputs);
    return value.dim() == 0 ? value.item<double>()
                            : (value * inputs.dy.to(at::kDouble)).sum().item<double>();
  };
  constexpr double kStep = 1e-6;
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (!outcome.gradients[i].defined()) {
      continue;
    }
    at::Tensor leaf = leaves[i];
    const at::Tensor direction = at::randn(leaf.sizes(), generator, at::kDouble);
    leaf.add_(direction, kStep);
    const double above = loss();
    leaf.add_(direction, -2 * kStep);
    const double below = loss();
    leaf.add_(direction, kStep);
    const double expected = (outcome.gradients[i] * direction).sum().item<double>();
    EXPECT_NEAR((above - below) / (2 * kStep), expected, 1e-6 * (1.0 + std::abs(expected)))
        << what << ", d" << kLeafNames[i];
  }
}

void expect_causal(
    const AttentionCase& shape,
    const AttentionInputs& x,
    const std::vector<std::int64_t>& tokens,
    const std::function<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&)>&
        attend) {
  const c10::NoGradGuard no_grad;
  const at::Tensor before = attend(x.q, x.k, x.v);
  for (const std::int64_t t : tokens) {
    const auto changed = [&](const at::Tensor& value) {
      at::Tensor copy = value.detach().clone();
      copy.narrow(2, t, shape.T - t).add_(1.0);
      return copy;
    };
    const at::Tensor after = attend(changed(x.q), changed(x.k), changed(x.v));
    EXPECT_TRUE(at::equal(before.narrow(2, 0, t), after.narrow(2, 0, t)))
        << shape.name() << ", tokens from " << t;
    EXPECT_FALSE(at::equal(before.narrow(2, t, 1), after.narrow(2, t, 1)))
        << shape.name() << ", tokens from " << t;
  }
}

}  // namespace hedgerow::kernels::testing
