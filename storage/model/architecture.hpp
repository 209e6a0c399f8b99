// The families of decoders that we compute, a row each: what their classes in transformers read of
// config.json, take where it says nothing and do otherwise than the Llama layer; and the slots of a
// layer with the names and shapes of their tensors. An export's Python has the rows as
// deploy/huggingface/modeling/architecture_rows_hedgerow.py, which a test writes from here
// (tests/storage/model/python_rows_test.cpp). What differs between families is data here and a case
// in worker/model/layer, nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hedgerow::storage {

struct ModelConfig;

// Where RMSNorm stands: at the input of attention and MLP, or at their output, before the residual
// addition (OLMo 2).
enum class NormPlace { kBefore, kAfter };
// RMSNorm of q and k: none, of each head by itself (Qwen3), of all heads together (OLMo 2).
enum class QkNorm { kNone, kHead, kWidth };

struct Architecture {
  // When softmax sees a window alone. kByLayer: by layer_types and max_window_layers, where
  // use_sliding_window says so (Qwen). kWithoutRope: by layer_types, else in layers without RoPE.
  enum class Sliding { kNever, kAllLayers, kByLayer, kWithoutRope };
  enum class Bias { kNone, kQkv, kByKey };  // kByKey: attention_bias, of o_proj too

  std::string_view name;  // the class in transformers
  std::string_view model_type;
  std::string_view models = {};      // of which names say less, for messages
  int num_key_value_heads = 0;       // 0: as many as query heads
  int head_dim = 0;                  // 0: hidden_size / num_attention_heads
  bool takes_null_head_dim = false;  // as an absent one; the others end with an error
  Bias bias = Bias::kNone;
  bool reads_mlp_bias = false;
  bool ties_embeddings = false;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  bool reads_no_rope_layers = false;
  Sliding sliding = Sliding::kNever;
  int sliding_window = 0;  // 0: none
  NormPlace norm_place = NormPlace::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
};
[[nodiscard]] std::span<const Architecture> architectures();

// What a decoder layer is made of.
enum class Slot { kAttentionNorm, kQ, kK, kV, kO, kQNorm, kKNorm, kMlpNorm, kGate, kUp, kDown };

// "model.layers.7."
[[nodiscard]] std::string layer_prefix(int layer_idx);

struct LayerTensor {
  Slot slot;
  bool is_bias = false;
  std::string name;  // behind layer_prefix(): "self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;
};
// The tensors of a layer, all that it must have, in the order in which they are hashed.
[[nodiscard]] std::vector<LayerTensor> layer_slots(const ModelConfig& config);

// A matrix [rows, columns] of a layer, by PEFT's name: layer module `parent`.`name`.
struct LinearModule {
  Slot slot;
  std::string_view parent, name;
  std::int64_t rows = 0, columns = 0;
  bool has_bias = false;
};
// The seven of a layer, in the order in which LoRA numbers them.
[[nodiscard]] std::array<LinearModule, 7> linear_modules(const ModelConfig& config);
// Throws kUsage listing them for another name.
[[nodiscard]] LinearModule linear_module(const ModelConfig& config, std::string_view name);
[[nodiscard]] LinearModule linear_module(const ModelConfig& config, Slot slot);
// Their names and paths ("self_attn.q_proj"), which are all families' own.
struct ModuleName {
  Slot slot;
  const char* parent;
  const char* name;
  [[nodiscard]] std::string path() const { return std::string(parent) + "." + name; }
};
[[nodiscard]] std::span<const ModuleName> module_names();
// Throws kUsage listing them.
[[nodiscard]] const ModuleName& module_name(std::string_view name);

}  // namespace hedgerow::storage
