#include "worker/laboratory/transformer.hpp"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <string>

#include "storage/base/error.hpp"

namespace hedgerow::worker::laboratory {
namespace {

constexpr double kWeightEpsilon = 1e-6;  // beside a weight in a logarithm: ReLU's may be 0
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
  const double embedding_deviation = options.tied_head ? head_deviation : kEmbeddingDeviation;
  embedding_ = drawn("embedding", options.vocab_size, M, embedding_deviation);
  // Half of the embedding's, as GPT-2's; as large a one as without a tied head would hide the
  // tokens.
  if (options.positions == Positions::kLearned)
    positions_ = drawn("positions", options.max_positions, M, embedding_deviation / 2);
  for (std::int64_t l = 0; l < options.num_layers; ++l) layers_.push_back(make_layer(l));
  const std::string norm = options.norm_embedding ? "embedding_norm" : "last_norm";
  model_norm_ = trained(norm, at::ones({M}));
  if (options.norm == LayerNormKind::kLayer)
    model_norm_bias_ = trained(norm + "_bias", at::zeros({M}));
  head_ = options.tied_head ? embedding_ : drawn("head", options.vocab_size, M, head_deviation);
}

at::Tensor Transformer::trained(const std::string& name, at::Tensor initial) {
  initial.requires_grad_(true);
  named_.push_back({name, initial});
  return initial;
}

at::Tensor Transformer::drawn(const std::string& name,
                              std::int64_t rows,
                              std::int64_t columns,
                              double deviation) {
  return trained(name, at::randn({rows, columns}, generator_, at::TensorOptions()).mul_(deviation));
}

void Transformer::add_gates(Layer& layer, const std::string& name, double deviation) {
  const std::int64_t M = options_.hidden_size, H = options_.num_heads;
  if (layer.spec.input_gate) {
    layer.input_gate = drawn(name + "input_gate", M, H, deviation);
    layer.input_gate_bias = trained(name + "input_gate_bias", at::zeros({H}));
  }
  if (layer.spec.output_gate) {
    layer.output_gate = drawn(name + "output_gate", M, H, deviation);
    layer.output_gate_bias = trained(name + "output_gate_bias", at::zeros({H}));
  }
}

void Transformer::add_map(Layer& layer, const std::string& name, std::uint64_t seed) {
  const std::int64_t H = options_.num_heads, D = options_.hidden_size / H;
  const ScoreSpec& spec = layer.spec;
  const bool has_weight = spec.map == Map::kHedgehog || spec.trained_map;
  if (has_weight) {  // Hedgehog's starts as the identity (000), T2R's at random
    const double deviation = 1 / std::sqrt(static_cast<double>(D));
    layer.map.weight =
        trained(name + "map.weight",
                spec.map == Map::kHedgehog
                    ? at::eye(D).repeat({H, 1, 1})
                    : at::randn({H, D, D}, generator_, at::TensorOptions()).mul_(deviation));
    layer.map.bias = trained(name + "map.bias", at::zeros({H, D}));
  }
  if (spec.map == Map::kFavor || spec.map == Map::kRandomTaylor)
    layer.map.omega =
        draw_directions(D, spec.num_features, spec.orthogonal, seed, embedding_.detach());
}

Transformer::Layer Transformer::make_layer(std::int64_t index) {
  const std::int64_t M = options_.hidden_size;
  const double deviation = 1 / std::sqrt(static_cast<double>(M));
  const std::string name = "layer." + std::to_string(index) + ".";
  Layer layer;
  layer.spec = options_.attention;
  if (!options_.layer_features.empty())
    layer.spec.num_features = options_.layer_features[static_cast<std::size_t>(index)];
  layer.norm1 = trained(name + "norm1", at::ones({M}));
  layer.norm2 = trained(name + "norm2", at::ones({M}));
  if (options_.norm == LayerNormKind::kLayer) {
    layer.norm1_bias = trained(name + "norm1_bias", at::zeros({M}));
    layer.norm2_bias = trained(name + "norm2_bias", at::zeros({M}));
  }
  const double branch = std::sqrt(2.0 * static_cast<double>(options_.num_layers));
  layer.qkv = drawn(name + "qkv", M, 3 * M, deviation);
  layer.out = drawn(name + "out", M, M, deviation / branch);
  if (options_.projection_biases) {
    layer.qkv_bias = trained(name + "qkv_bias", at::zeros({3 * M}));
    layer.out_bias = trained(name + "out_bias", at::zeros({M}));
  }
  layer.up = drawn(name + "up", M, options_.mlp_size, deviation);
  layer.up_bias = trained(name + "up_bias", at::zeros({options_.mlp_size}));
  layer.down = drawn(name + "down",
                     options_.mlp_size,
                     M,
                     1 / (branch * std::sqrt(static_cast<double>(options_.mlp_size))));
  layer.down_bias = trained(name + "down_bias", at::zeros({M}));
  add_gates(layer, name, deviation);
  add_map(layer, name, options_.seed + kDirectionSeed + static_cast<std::uint64_t>(index));
  return layer;
}

void Transformer::copy_from(const Transformer& other) const {
  for (const Named& theirs : other.named_) {
    for (const Named& ours : named_) {
      if (ours.name == theirs.name) assign(ours.name, theirs.tensor.detach());
    }
  }
}

void Transformer::assign(std::string_view name, const at::Tensor& value) const {
  const c10::NoGradGuard no_grad;
  for (const Named& ours : named_) {
    if (ours.name != name) continue;
    if (!ours.tensor.sizes().equals(value.sizes()))
      throw storage::Error(storage::ErrorKind::kUsage,
                           "laboratory model, " + ours.name + ": another shape than the model's");
    ours.tensor.detach().copy_(value);
    return;
  }
  throw storage::Error(storage::ErrorKind::kUsage,
                       "laboratory model, " + std::string(name) + ": no such parameter");
}

std::vector<at::Tensor> Transformer::parameters() const {
  std::vector<at::Tensor> all;
  for (const Named& parameter : named_) all.push_back(parameter.tensor);
  return all;
}

std::vector<at::Tensor> Transformer::map_parameters() const {
  std::vector<at::Tensor> all;
  for (const Layer& layer : layers_) {
    if (layer.map.weight.defined()) all.insert(all.end(), {layer.map.weight, layer.map.bias});
  }
  return all;
}

at::Tensor Transformer::norm(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias) const {
  if (options_.norm == LayerNormKind::kLayer)
    return at::layer_norm(x, {x.size(-1)}, weight, bias, options_.norm_epsilon);
  return x * (x.square().mean(-1, true) + options_.norm_epsilon).rsqrt() * weight;
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
                                  const Probe& probe) const {
  const std::int64_t B = x.size(0), T = x.size(1), H = options_.num_heads;
  at::Tensor projected = at::matmul(x, layer.qkv);
  if (layer.qkv_bias.defined()) projected = projected + layer.qkv_bias;
  const at::Tensor qkv = projected.view({B, T, 3, H, x.size(2) / H}).permute({2, 0, 3, 1, 4});
  AttentionParameters parameters = layer.map;
  parameters.is_token = is_token;
  const auto gate = [&](const at::Tensor& weight, const at::Tensor& bias) {
    return (at::matmul(x, weight) + bias).sigmoid().transpose(1, 2);
  };
  if (layer.spec.input_gate) parameters.input_gate = gate(layer.input_gate, layer.input_gate_bias);
  if (layer.spec.output_gate)
    parameters.output_gate = gate(layer.output_gate, layer.output_gate_bias);
  const at::Tensor q = rotate(qkv[0]), k = rotate(qkv[1]);
  const at::Tensor weights = probe.map_loss != nullptr
                                 ? add_map_loss(layer, q, k, parameters, *probe.map_loss)
                                 : attention_weights(q, k, layer.spec, parameters);
  if (probe.entropy != nullptr) *probe.entropy += mean_entropy(weights);
  const at::Tensor y = apply_norm(layer.spec.norm, at::matmul(weights, qkv[2]));
  const at::Tensor out = at::matmul(y.transpose(1, 2).reshape({B, T, x.size(2)}), layer.out);
  return layer.out_bias.defined() ? out + layer.out_bias : out;
}

at::Tensor Transformer::add_map_loss(const Layer& layer,
                                     const at::Tensor& q,
                                     const at::Tensor& k,
                                     const AttentionParameters& parameters,
                                     at::Tensor& sum) const {
  ScoreSpec softmax;
  softmax.causal = layer.spec.causal;
  AttentionParameters mask;
  mask.is_token = parameters.is_token;
  at::Tensor wanted = attention_weights(q, k, softmax, mask);
  const c10::AutoGradMode with_grad(true);
  const at::Tensor found = attention_weights(q, k, layer.spec, parameters);
  at::Tensor rows = -(wanted * (found + kWeightEpsilon).log()).sum(-1);  // [B, H, T]
  if (mask.is_token.defined()) {
    const at::Tensor counts = mask.is_token.unsqueeze(1).to(rows.scalar_type()).expand_as(rows);
    sum = sum + (rows * counts).sum() / counts.sum();
  } else {
    sum = sum + rows.mean();
  }
  return wanted;
}

at::Tensor Transformer::run(const at::Tensor& ids,
                            const at::Tensor& is_token,
                            const Probe& probe) const {
  const char* gelu = options_.tanh_gelu ? "tanh" : "none";
  const auto mlp = [gelu](const Layer& layer, const at::Tensor& x) {
    return at::addmm(layer.down_bias,
                     at::gelu(at::addmm(layer.up_bias, x.flatten(0, 1), layer.up), gelu),
                     layer.down)
        .view(x.sizes());
  };
  at::Tensor x = embed(ids);
  if (options_.norm_embedding) x = norm(x, model_norm_, model_norm_bias_);
  for (const Layer& layer : layers_) {
    if (options_.norm_first) {
      x = x + attention(layer, norm(x, layer.norm1, layer.norm1_bias), is_token, probe);
      x = x + mlp(layer, norm(x, layer.norm2, layer.norm2_bias));
    } else {
      x = norm(x + attention(layer, x, is_token, probe), layer.norm1, layer.norm1_bias);
      x = norm(x + mlp(layer, x), layer.norm2, layer.norm2_bias);
    }
  }
  return options_.norm_embedding ? x : norm(x, model_norm_, model_norm_bias_);
}

at::Tensor Transformer::hidden(const at::Tensor& ids, const at::Tensor& is_token) const {
  return run(ids, is_token, {});
}

at::Tensor Transformer::logits(const at::Tensor& hidden) const {
  return at::matmul(hidden, head_.t());
}

double Transformer::entropy(const at::Tensor& ids) const {
  const c10::NoGradGuard no_grad;
  double sum = 0;
  (void)run(ids, {}, {.entropy = &sum, .map_loss = nullptr});
  return sum / static_cast<double>(layers_.size());
}

at::Tensor Transformer::map_loss(const at::Tensor& ids, const at::Tensor& is_token) const {
  expect(options_.attention.denominator == Denominator::kSum &&
             options_.attention.score == Score::kProduct,
         "attention",
         "maps are distilled into weights that are positive and sum to 1");
  at::Tensor sum = at::zeros({}, embedding_.options().requires_grad(false));
  {
    const c10::NoGradGuard no_grad;
    (void)run(ids, is_token, {.entropy = nullptr, .map_loss = &sum});
  }
  return sum / static_cast<double>(layers_.size());
}

}  // namespace hedgerow::worker::laboratory
