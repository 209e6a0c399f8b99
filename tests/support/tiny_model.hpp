// A random Llama-family model small enough for unit tests, written as a Hugging Face directory:
// config.json and model.safetensors, as load_layer reads them.
#pragma once

#include <cstdint>
#include <filesystem>

namespace hedgerow::tests {

struct TinyModel {
  int num_layers = 4;
  int hidden_size = 64;
  int intermediate_size = 96;
  int num_attention_heads = 4;
  int num_key_value_heads = 2;
  int head_dim = 16;
  int vocab_size = 101;
  bool qkv_bias = false;  // a Qwen2
  bool qk_norm = false;   // a Qwen3
  bool tied = true;
  bool llama3_rope = false;
  std::uint64_t seed = 1;
};

// Weights are bf16 normal numbers of variance about 1 / fan-in, so that hidden states keep their
// size; the same options give the same bytes.
void write_tiny_model(const std::filesystem::path& directory, const TinyModel& options = {});

}  // namespace hedgerow::tests
