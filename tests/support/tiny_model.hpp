// A random model small enough for unit tests, written as a Hugging Face directory:
// config.json and model.safetensors, as load_layer reads them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace hedgerow::tests {

struct TinyModel {
  int num_layers = 4;
  int hidden_size = 64;
  int intermediate_size = 96;
  int num_attention_heads = 4;
  int num_key_value_heads = 2;
  int head_dim = 16;
  int vocab_size = 101;
  std::string model_type = "llama";  // of storage::architectures()
  bool tied = true;
  bool llama3_rope = false;
  std::uint64_t seed = 1;
};

// Weights are bf16 normal numbers of variance about 1 / fan-in, so that hidden states keep their
// size; the same options give the same bytes.
void write_tiny_model(const std::filesystem::path& directory, const TinyModel& options = {});

}  // namespace hedgerow::tests
