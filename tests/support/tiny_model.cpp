#include "tests/support/tiny_model.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/vector_math.hpp"
#include "storage/base/philox.hpp"
#include "storage/files/file.hpp"
#include "storage/model/model_config.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::tests {
namespace {

// Before a test of a process computes on several threads, as the worker's main() does.
[[maybe_unused]] const bool kIsResolved = (kernels::resolve_vector_math(), true);

nlohmann::json config_json(const TinyModel& options) {
  const auto family = std::ranges::find(
      storage::architectures(), options.model_type, &storage::Architecture::model_type);
  nlohmann::json config = {{"architectures", {family->name}},
                           {"model_type", family->model_type},
                           {"torch_dtype", "bfloat16"},
                           {"hidden_act", "silu"},
                           {"vocab_size", options.vocab_size},
                           {"hidden_size", options.hidden_size},
                           {"intermediate_size", options.intermediate_size},
                           {"num_hidden_layers", options.num_layers},
                           {"num_attention_heads", options.num_attention_heads},
                           {"num_key_value_heads", options.num_key_value_heads},
                           {"head_dim", options.head_dim},
                           {"max_position_embeddings", 4096},
                           {"rms_norm_eps", 1e-5},
                           {"rope_theta", 10000.0},
                           {"tie_word_embeddings", options.tied},
                           {"bos_token_id", 1},
                           {"eos_token_id", 2}};
  if (options.llama3_rope) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 64}};
  }
  return config;
}

std::uint16_t bf16_bits(double value) {
  const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace

void write_tiny_model(const std::filesystem::path& directory, const TinyModel& options) {
  std::filesystem::create_directories(directory);
  const std::string text = config_json(options).dump(2);
  storage::write_atomically(directory / "config.json", text);
  const auto config = storage::ModelConfig::parse(text, "tiny model");
  std::vector<storage::TensorShape> shapes = storage::outer_tensors(config);
  for (int layer = 0; layer < options.num_layers; ++layer) {
    for (const auto& shape : storage::layer_tensors(config, layer)) shapes.push_back(shape);
  }
  std::map<std::string, std::vector<std::uint16_t>> data;
  std::map<std::string, storage::TensorView> views;
  std::uint32_t index = 0;
  for (const storage::TensorShape& tensor : shapes) {
    storage::PhiloxStream random(options.seed, 0x74696e79, index++, 0);
    std::int64_t count = 1;
    for (const std::int64_t size : tensor.shape) count *= size;
    const bool is_norm = tensor.name.find("norm") != std::string::npos;
    const double scale = is_norm ? 0.1 : 1.0 / std::sqrt(static_cast<double>(tensor.shape.back()));
    auto& values = data[tensor.name];
    for (std::int64_t i = 0; i < count; ++i)
      values.push_back(bf16_bits((is_norm ? 1.0 : 0.0) + scale * random.normal()));
    views[tensor.name] = {storage::DType::kBF16, tensor.shape, std::as_bytes(std::span(values))};
  }
  storage::write_safetensors(directory / "model.safetensors", views);
}

}  // namespace hedgerow::tests
