// A Hugging Face model directory, opened and checked: config.json as a typed value, and every
// tensor of its safetensors shards by name. The families that are known: architecture.hpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/model/architecture.hpp"
#include "storage/tensors/safetensors.hpp"

namespace hedgerow::storage {

// RoPE as transformers computes it; `kind` is config.json's rope_type.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kLlama3 };
  Kind kind = Kind::kDefault;
  double theta = 10000.0;
  double factor = 1.0;
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int original_max_position_embeddings = 8192;
};

struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  std::string model_type;    // "llama", "mistral", ...
  std::string dtype;         // "bfloat16", ... as stored
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int num_key_value_heads = 0;
  int head_dim = 0;
  int max_position_embeddings = 0;
  double rms_norm_eps = 1e-5;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2; Llama's attention_bias
  bool o_bias = false;    // Llama's attention_bias
  bool mlp_bias = false;
  NormPlace norm_place = NormPlace::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  std::vector<int> layers_without_rope;  // ascending, as the next
  // The softmax window of these layers; see require_within_window().
  std::optional<int> sliding_window;
  std::vector<int> sliding_layers;
  RopeConfig rope;
  std::vector<int> eos_token_ids;
  std::optional<int> bos_token_id;

  // Throws kUsage: unsupported architecture (named, with the supported list), a variant that we
  // would compute otherwise than transformers, or a missing or ill-typed key; kCorrupt: not JSON,
  // or a key that stands twice.
  static ModelConfig parse(const std::string& config_json, const std::string& name);

  [[nodiscard]] bool has_rope(int layer_idx) const;
  // The softmax that we compute sees every token before it. Throws kUsage, beginning with `what`
  // ("data.transfer.seq_len = 512"), where the model's own would see fewer of `num_tokens`.
  void require_within_window(std::int64_t num_tokens, const std::string& what) const;
};

struct TensorShape {
  std::string name;
  std::vector<std::int64_t> shape;
};
// The tensors that one decoder layer / the model outside its layers must have, with their shapes.
[[nodiscard]] std::vector<TensorShape> layer_tensors(const ModelConfig& config, int layer_idx);
[[nodiscard]] std::vector<TensorShape> outer_tensors(const ModelConfig& config);

// kOptional: config.json alone will do, as for a plan; what is there is checked all the same.
enum class Weights { kRequired, kOptional };

class ModelDirectory {
 public:
  // `reference` is a directory, or org/name found in the local Hugging Face cache (HF_HUB_CACHE,
  // HF_HOME, ~/.cache), offline. Every tensor that its config.json asks for is there with its
  // shape; surplus ones are ignored but for unknown layers. All weight files are mapped and their
  // headers checked; pages come in when touched. Index entries must be plain base names; the
  // resolved file may be a symbolic link (cache snapshots link into blobs). Throws kUsage for
  // whatever is missing or wrong in it, such as a FIFO or a device: it is its owner's to mend, also
  // where it was damaged.
  static ModelDirectory open(const std::string& reference, Weights weights = Weights::kRequired);
  // Where that is, whatever it holds: what other programs are given. Throws kUsage.
  static std::filesystem::path locate(const std::string& reference);
  // Whether it has the form org/name; such a directory, where there is one, goes before the cache.
  [[nodiscard]] static bool is_hub_name(const std::string& reference);
  ModelDirectory(ModelDirectory&&) noexcept;
  ~ModelDirectory();

  [[nodiscard]] const std::filesystem::path& path() const;
  [[nodiscard]] const ModelConfig& config() const;
  // A view into the mapped file, in any float type; lives as long as this object. Any thread.
  // Throws kUsage naming the tensor, its file, expected and found shape.
  [[nodiscard]] TensorView tensor(const TensorShape& expected) const;
  [[nodiscard]] bool has(const std::string& name) const;
  // Weight files that are missing, by Weights::kOptional: of the index, or the one file.
  [[nodiscard]] const std::vector<std::string>& unseen() const;
  // The weight file that holds a tensor, without its directory.
  [[nodiscard]] const std::string& file_of(const std::string& name) const;
  // Hash of config.json and of all weight files' names, sizes and headers: identifies the teacher
  // in artifacts.
  [[nodiscard]] std::string fingerprint() const;

 private:
  struct Impl;
  void check_complete() const;
  explicit ModelDirectory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
