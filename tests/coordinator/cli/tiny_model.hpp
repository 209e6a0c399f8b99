// A complete Llama directory of a few kilobytes, with weights of zero: what commands need to open a
// model.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::coordinator::cli {

inline constexpr const char* kTinyConfig =
    R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
  "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
  "torch_dtype": "float32", "eos_token_id": 2, "bos_token_id": 1, "tie_word_embeddings": true, "rope_theta": 10000.0})";

inline void write_tiny_model(const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.json") << kTinyConfig;
  const storage::ModelConfig config = storage::ModelConfig::parse(kTinyConfig, "tiny");
  std::vector<storage::TensorShape> shapes = storage::outer_tensors(config);
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
    for (auto& shape : storage::layer_tensors(config, layer)) shapes.push_back(shape);
  }
  const std::vector<std::byte> zeros(1 << 16);
  std::map<std::string, storage::TensorView> tensors;
  for (const auto& [name, shape] : shapes) {
    std::size_t count = 4;
    for (const std::int64_t extent : shape) count *= static_cast<std::size_t>(extent);
    tensors[name] = {storage::DType::kF32, shape, std::span(zeros).first(count)};
  }
  storage::write_safetensors(directory / "model.safetensors", tensors);
}

}  // namespace hedgerow::coordinator::cli
