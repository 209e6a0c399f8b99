#include "tests/support/tiny_student.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "storage/base/philox.hpp"
#include "storage/files/file.hpp"
#include "storage/tensors/safetensors.hpp"
#include "worker/model/tensor_bytes.hpp"

namespace hedgerow::tests {
namespace {

using worker::FrozenProduct;
using worker::LayerWeights;

constexpr int kHidden = 32, kHeads = 4, kKvHeads = 2, kHeadDim = 8, kInner = 48, kVocabulary = 61;

kernels::FeatureMapWeights feature_map(std::int64_t num_maps, std::uint32_t stream) {
  return {uniform({num_maps, kHeadDim, kHeadDim / 2}, 0.8, stream), {}};
}

LayerWeights layer_weights(const TinyOptions& options, std::uint32_t stream) {
  const auto draw = [&](std::vector<std::int64_t> shape, double scale) {
    return uniform(std::move(shape), scale, ++stream).to(options.dtype);
  };
  const auto norm = [&](std::int64_t size) { return 1.0 + uniform({size}, 0.2, ++stream); };
  constexpr std::int64_t kQkv = (kHeads + 2 * kKvHeads) * kHeadDim;
  const std::int64_t heads = options.qk_norm == storage::QkNorm::kWidth ? kHeads : 1;
  const std::int64_t kv_heads = options.qk_norm == storage::QkNorm::kWidth ? kKvHeads : 1;
  LayerWeights layer;
  layer.attention_norm = norm(kHidden);
  layer.mlp_norm = norm(kHidden);
  const at::Tensor qkv = draw({kQkv, kHidden}, 0.4), o = draw({kHidden, kHeads * kHeadDim}, 0.3),
                   gate_up = draw({2 * kInner, kHidden}, 0.3), down = draw({kHidden, kInner}, 0.3);
  if (options.qk_norm != storage::QkNorm::kNone) {
    layer.q_norm = norm(heads * kHeadDim);
    layer.k_norm = norm(kv_heads * kHeadDim);
  }
  const auto bias = [&](std::int64_t size) {
    return options.biases ? draw({size}, 0.2) : at::Tensor();
  };
  layer.qkv = FrozenProduct(qkv, bias(kQkv));
  layer.o = FrozenProduct(o, bias(kHidden));
  layer.gate_up = FrozenProduct(gate_up, bias(2 * kInner));
  layer.down = FrozenProduct(down, bias(kHidden));
  return layer;
}

}  // namespace

at::Tensor uniform(std::vector<std::int64_t> shape, double scale, std::uint32_t stream) {
  storage::PhiloxStream random(1, 0x74696e79, stream, 0);
  at::Tensor tensor = at::empty(shape, at::kFloat);
  std::generate_n(tensor.mutable_data_ptr<float>(), tensor.numel(), [&] {
    return static_cast<float>((2.0 * random.uniform() - 1.0) * scale);
  });
  return tensor;
}

TinyStudent make_tiny_student(const TinyOptions& options) {
  TinyStudent tiny;
  auto& config = tiny.config;
  config.architecture = "LlamaForCausalLM";
  config.model_type = "llama";
  config.vocab_size = kVocabulary;
  config.hidden_size = kHidden;
  config.intermediate_size = kInner;
  config.num_hidden_layers = options.num_layers;
  config.num_attention_heads = kHeads;
  config.num_key_value_heads = kKvHeads;
  config.head_dim = kHeadDim;
  config.max_position_embeddings = 512;
  config.tie_word_embeddings = true;
  config.qk_norm = options.qk_norm;
  config.norm_place = options.norm_place;
  config.layers_without_rope = options.layers_without_rope;
  config.eos_token_ids = {2};
  tiny.outer.embed_tokens = uniform({kVocabulary, kHidden}, 1.0, 1).to(options.dtype);
  tiny.outer.lm_head = tiny.outer.embed_tokens;
  tiny.outer.final_norm = 1.0 + uniform({kHidden}, 0.2, 2);
  auto& spec = tiny.student.attention;
  spec.feature_dim = kHeadDim;
  spec.window = options.window;
  spec.window_size = options.window_size;
  spec.num_sinks = options.window == storage::WindowLayout::kNone ? 0 : options.num_sinks;
  spec.key_maps = options.key_maps;
  tiny.student.options = spec;
  for (int i = 0; i < options.num_layers; ++i) {
    const auto stream = static_cast<std::uint32_t>(1000 * (i + 1));
    tiny.layers.push_back(layer_weights(options, stream));
    tiny.layers.back().has_rope = config.has_rope(i);
    if (std::ranges::count(options.softmax_layers, i) > 0) {
      tiny.student.layers.emplace_back(std::nullopt);
    } else {
      tiny.student.layers.emplace_back(
          kernels::HybridParameters{feature_map(kHeads, stream + 500),
                                    feature_map(spec.num_key_maps(kHeads, kKvHeads), stream + 501),
                                    uniform({kHeads}, 1.0, stream + 502) - 1.0});
    }
  }
  return tiny;
}

void write_tiny_student(const worker::RunContext& run, const std::string& name) {
  const auto& config = run.config();
  const auto& spec = run.recipe().attention;
  const auto directory = run.layout().root() / name;
  std::filesystem::create_directories(directory);
  const nlohmann::json description = {
      {"format", "student/1"},
      {"teacher",
       {{"path", run.model().path().string()}, {"fingerprint", run.model().fingerprint()}}},
      {"attention", spec},
      {"softmax_layers", {2}},
      {"layers", nlohmann::json::array()}};
  storage::write_atomically(directory / "hedgerow.json", description.dump());
  std::vector<at::Tensor> tensors;
  std::map<std::string, storage::TensorView> views;
  std::uint32_t stream = 0;
  const auto add = [&](const std::string& key, std::vector<std::int64_t> shape) {
    tensors.push_back(uniform(std::move(shape), 0.5, ++stream));
    views[key] = worker::view_of(tensors.back());
  };
  const std::int64_t heads = config.num_attention_heads;
  const std::int64_t key_maps = spec.num_key_maps(heads, config.num_key_value_heads);
  for (const int layer : {0, 1, 3}) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    for (const auto& [map, num_maps] :
         {std::pair{"feature_map_q", heads}, std::pair{"feature_map_k", key_maps}}) {
      add(prefix + map + ".mlp.layer", {num_maps, config.head_dim, spec.projected_dim()});
      if (spec.bias) add(prefix + map + ".mlp.bias", {num_maps, spec.projected_dim()});
    }
    add(prefix + "window_factors", {1, heads, 1, 1});
  }
  storage::write_safetensors(directory / "feature_maps.safetensors", views);
}

TinyStudent on_device(const TinyStudent& tiny, const at::Device& device) {
  TinyStudent moved = tiny;
  const auto move = [&device](auto&... tensors) {
    ((tensors = tensors.defined() ? tensors.to(device) : tensors), ...);
  };
  move(moved.outer.embed_tokens, moved.outer.lm_head, moved.outer.final_norm);
  for (LayerWeights& layer : moved.layers) {
    for (const worker::NormSlot& norm : worker::kNorms) move(layer.*norm.norm);
    for (const worker::ProductSlots& product : worker::kProducts) {
      at::Tensor weight = (layer.*product.product).weight(), bias = (layer.*product.product).bias();
      move(weight, bias);
      layer.*product.product = FrozenProduct(weight, bias);
    }
  }
  for (auto& layer : moved.student.layers) {
    if (!layer) continue;
    move(layer->q.layer, layer->q.bias, layer->k.layer, layer->k.bias, layer->window_factors);
  }
  return moved;
}

storage::TokenSequences make_tiny_tokens(std::int64_t num_train,
                                         std::int64_t num_validation,
                                         std::int64_t seq_len,
                                         std::int64_t vocab_size) {
  storage::TokenSequences tokens;
  tokens.num_sequences = num_train + num_validation;
  tokens.num_train = num_train;
  tokens.seq_len = seq_len;
  tokens.vocab_size = vocab_size;
  storage::PhiloxStream random(2, 0x74696e79, 0, 0);
  for (std::int64_t i = 0; i < tokens.num_sequences * seq_len; ++i) {
    tokens.input_ids.push_back(
        static_cast<std::int32_t>(random.uniform() * static_cast<double>(vocab_size)));
    tokens.loss_mask.push_back(random.uniform() < 2.0 / 3.0 ? 1 : 0);
    tokens.document_starts.push_back(i % seq_len == 0 ? 1 : 0);
  }
  return tokens;
}

}  // namespace hedgerow::tests
