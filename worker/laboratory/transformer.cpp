#include "worker/laboratory/transformer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kLayerEpsilon = 1e-6;
constexpr double kRopeTheta = 10000.0;
constexpr double kEmbeddingDeviation = 0.5;
// Added to a seed of weights, so that random directions are not the first weights again.
constexpr std::uint64_t kDirectionSeed = 0x9e3779b97f4a7c15;

void expect(bool condition, const char* field, const std::string& what) {
  if (!condition)
    throw storage::Error(storage::ErrorKind::kUsage,
                         std::string("laboratory model, ") + field + ": " + what);
}

}  // namespace

void TransformerOptions::validate() const {
  attention.validate();
  expect(vocab_size >= 2, "vocab_size", "expected at least 2, found " + std::to_string(vocab_size));
  expect(num_layers >= 1, "num_layers", "expected at least 1, found " + std::to_string(num_layers));
  expect(num_heads >= 1 && hidden_size % num_heads == 0,
         "num_heads",
         "expected a divisor of hidden_size " + std::to_string(hidden_size) + ", found " +
             std::to_string(num_heads));
  expect(
      positions != Positions::kRotary || hidden_size / num_heads % 2 == 0,
      "num_heads",
      "rotary positions want an even head_dim, found " + std::to_string(hidden_size / num_heads));
  expect(layer_features.empty() || static_cast<std::int64_t>(layer_features.size()) == num_layers,
         "layer_features",
         "expected one number a layer (" + std::to_string(num_layers) + "), found " +
             std::to_string(layer_features.size()));
}

Transformer::Transformer(const TransformerOptions& options)
    : options_(options), generator_(at::make_generator<at::CPUGeneratorImpl>(options.seed)) {
  options.validate();
  const std::int64_t M = options.hidden_size;
  // A tied head reads normed states, whose products with it have deviation 1 then, so that training
  // begins near a loss of ln V.
  const double head_deviation = 1 / std::sqrt(static_cast<double>(M));
  embedding_ =
      drawn(options.vocab_size, M, options.tied_head ? head_deviation : kEmbeddingDeviation);
  if (options.positions == Positions::kLearned)
    positions_ = drawn(options.max_positions, M, kEmbeddingDeviation);
  for (std::int64_t l = 0; l < options.num_layers; ++l) layers_.push_back(make_layer(l));
  last_norm_ = trained(at::ones({M}));
  if (options.norm == LayerNormKind::kLayer) last_norm_bias_ = trained(at::zeros({M}));
  head_ = options.tied_head ? embedding_ : drawn(options.vocab_size, M, head_deviation);
}

at::Tensor Transformer::trained(at::Tensor initial) {
  initial.requires_grad_(true);
  parameters_.push_back(initial);
  return initial;
}

at::Tensor Transformer::drawn(std::int64_t rows, std::int64_t columns, double deviation) {
  return trained(at::randn({rows, columns}, generator_, at::TensorOptions()).mul_(deviation));
}

Transformer::Layer Transformer::make_layer(std::int64_t index) {
  const std::int64_t M = options_.hidden_size, H = options_.num_heads, D = M / H;
  const double deviation = 1 / std::sqrt(static_cast<double>(M));
  Layer layer;
  layer.spec = options_.attention;
  if (!options_.layer_features.empty())
    layer.spec.num_features = options_.layer_features[static_cast<std::size_t>(index)];
  layer.norm1 = trained(at::ones({M}));
  layer.norm2 = trained(at::ones({M}));
  if (options_.norm == LayerNormKind::kLayer) {
    layer.norm1_bias = trained(at::zeros({M}));
    layer.norm2_bias = trained(at::zeros({M}));
  }
  layer.qkv = drawn(M, 3 * M, deviation);
  layer.out = drawn(M, M, deviation / std::sqrt(2.0 * static_cast<double>(options_.num_layers)));
  layer.up = drawn(M, options_.mlp_size, deviation);
  layer.up_bias = trained(at::zeros({options_.mlp_size}));
  layer.down = drawn(options_.mlp_size,
                     M,
                     1 / std::sqrt(2.0 * static_cast<double>(options_.num_layers) *
                                   static_cast<double>(options_.mlp_size)));
  layer.down_bias = trained(at::zeros({M}));
  const AttentionSpec& spec = layer.spec;
  if (spec.input_gate) {
    layer.input_gate = drawn(M, H, deviation);
    layer.input_gate_bias = trained(at::zeros({H}));
  }
  if (spec.output_gate) {
    layer.output_gate = drawn(M, H, deviation);
    layer.output_gate_bias = trained(at::zeros({H}));
  }
  if (spec.map == Map::kHedgehog) {  // starts as the identity (000)
    layer.map.weight = trained(at::eye(D).repeat({H, 1, 1}));
    layer.map.bias = trained(at::zeros({H, D}));
  }
  if (spec.map == Map::kFavor || spec.map == Map::kRandomTaylor)
    layer.map.omega =
        draw_directions(D,
                        spec.num_features,
                        spec.orthogonal,
                        options_.seed + kDirectionSeed + static_cast<std::uint64_t>(index),
                        embedding_.detach());
  return layer;
}

at::Tensor Transformer::norm(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias) const {
  if (options_.norm == LayerNormKind::kLayer)
    return at::layer_norm(x, {x.size(-1)}, weight, bias, kLayerEpsilon);
  return x * (x.square().mean(-1, true) + kLayerEpsilon).rsqrt() * weight;
}

at::Tensor Transformer::embed(const at::Tensor& ids) const {
  at::Tensor x = at::embedding(embedding_, ids);
  if (options_.positions == Positions::kRotary) return x;
  expect(ids.size(1) <= options_.max_positions,
         "max_positions",
         "a sequence of " + std::to_string(ids.size(1)) + " tokens is beyond the " +
             std::to_string(options_.max_positions) + " learned positions");
  return x + positions_.narrow(0, 0, ids.size(1));
}

at::Tensor Transformer::rotate(const at::Tensor& x) const {
  if (options_.positions != Positions::kRotary) return x;
  const std::int64_t T = x.size(-2), D = x.size(-1);
  const at::Tensor frequency =
      at::arange(0, D, 2, x.options()).mul(-std::log(kRopeTheta) / static_cast<double>(D)).exp();
  const at::Tensor angle = at::outer(at::arange(T, x.options()), frequency);
  const at::Tensor cos = angle.cos(), sin = angle.sin();
  const at::Tensor a = x.narrow(-1, 0, D / 2), b = x.narrow(-1, D / 2, D / 2);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, -1);
}

at::Tensor Transformer::attention(const Layer& layer,
                                  const at::Tensor& x,
                                  const at::Tensor& is_token,
                                  double* entropy) const {
  const std::int64_t B = x.size(0), T = x.size(1), H = options_.num_heads;
  const at::Tensor qkv =
      at::matmul(x, layer.qkv).view({B, T, 3, H, x.size(2) / H}).permute({2, 0, 3, 1, 4});
  AttentionParameters parameters = layer.map;
  parameters.is_token = is_token;
  const auto gate = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return (at::matmul(x, weight) + bias).sigmoid().transpose(1, 2);
  };
  if (layer.spec.input_gate) parameters.input_gate = gate(layer.input_gate, layer.input_gate_bias);
  if (layer.spec.output_gate)
    parameters.output_gate = gate(layer.output_gate, layer.output_gate_bias);
  const at::Tensor weights =
      attention_weights(rotate(qkv[0]), rotate(qkv[1]), layer.spec, parameters);
  if (entropy != nullptr) *entropy += mean_entropy(weights);
  const at::Tensor y = apply_norm(layer.spec.norm, at::matmul(weights, qkv[2]));
  return at::matmul(y.transpose(1, 2).reshape({B, T, x.size(2)}), layer.out);
}

at::Tensor Transformer::run(const at::Tensor& ids,
                            const at::Tensor& is_token,
                            double* entropy) const {
  const auto mlp = [](const Layer& layer, const at::Tensor& x) {
    return at::addmm(layer.down_bias,
                     at::gelu(at::addmm(layer.up_bias, x.flatten(0, 1), layer.up)),
                     layer.down)
        .view(x.sizes());
  };
  at::Tensor x = embed(ids);
  for (const Layer& layer : layers_) {
    if (options_.norm_first) {
      x = x + attention(layer, norm(x, layer.norm1, layer.norm1_bias), is_token, entropy);
      x = x + mlp(layer, norm(x, layer.norm2, layer.norm2_bias));
    } else {
      x = norm(x + attention(layer, x, is_token, entropy), layer.norm1, layer.norm1_bias);
      x = norm(x + mlp(layer, x), layer.norm2, layer.norm2_bias);
    }
  }
  return norm(x, last_norm_, last_norm_bias_);
}

at::Tensor Transformer::hidden(const at::Tensor& ids, const at::Tensor& is_token) const {
  return run(ids, is_token, nullptr);
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  return at::matmul(hidden, head_.t());
}

double Transformer::entropy(const at::Tensor& ids) const {
  const c10::NoGradGuard no_grad;
  double sum = 0;
  (void)run(ids, {}, &sum);
  return sum / static_cast<double>(layers_.size());
}

std::int64_t Transformer::num_parameters() const {
  std::int64_t count = 0;
  for (const at::Tensor& parameter : parameters_) count += parameter.numel();
  return count;
}

}  // namespace hedgerow::worker::laboratory
