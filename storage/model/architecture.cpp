#include "storage/model/architecture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::storage {
namespace {

// A key that a class does not read changes nothing there and nothing here.
constexpr std::array kArchitectures{
    Architecture{.name = "LlamaForCausalLM",
                 .model_type = "llama",
                 .models = "Llama 2, 3, 3.1, SmolLM2",
                 .takes_null_head_dim = true,
                 .bias = Architecture::Bias::kByKey,
                 .reads_mlp_bias = true},
    Architecture{.name = "MistralForCausalLM",
                 .model_type = "mistral",
                 .num_key_value_heads = 8,
                 .takes_null_head_dim = true,
                 .sliding = Architecture::Sliding::kAllLayers,
                 .sliding_window = 4096},
    Architecture{.name = "Qwen2ForCausalLM",
                 .model_type = "qwen2",
                 .num_key_value_heads = 32,
                 .bias = Architecture::Bias::kQkv,
                 .sliding = Architecture::Sliding::kByLayer,
                 .sliding_window = 4096},
    Architecture{.name = "Qwen3ForCausalLM",
                 .model_type = "qwen3",
                 .num_key_value_heads = 32,
                 .head_dim = 128,
                 .bias = Architecture::Bias::kByKey,
                 .sliding = Architecture::Sliding::kByLayer,
                 .sliding_window = 4096,
                 .qk_norm = QkNorm::kHead},
    Architecture{.name = "Olmo2ForCausalLM",
                 .model_type = "olmo2",
                 .models = "OLMo 2",
                 .bias = Architecture::Bias::kByKey,
                 .rms_norm_eps = 1e-5,
                 .norm_place = NormPlace::kAfter,
                 .qk_norm = QkNorm::kWidth},
    Architecture{.name = "SmolLM3ForCausalLM",
                 .model_type = "smollm3",
                 .num_key_value_heads = 4,
                 .bias = Architecture::Bias::kByKey,
                 .reads_mlp_bias = true,
                 .ties_embeddings = true,
                 .rope_theta = 2000000.0,
                 .reads_no_rope_layers = true,
                 .sliding = Architecture::Sliding::kWithoutRope},
};

constexpr std::array<ModuleName, 7> kModules{{{Slot::kQ, "self_attn", "q_proj"},
                                              {Slot::kK, "self_attn", "k_proj"},
                                              {Slot::kV, "self_attn", "v_proj"},
                                              {Slot::kO, "self_attn", "o_proj"},
                                              {Slot::kGate, "mlp", "gate_proj"},
                                              {Slot::kUp, "mlp", "up_proj"},
                                              {Slot::kDown, "mlp", "down_proj"}}};

// Names of the norms before or behind attention and MLP.
std::pair<const char*, const char*> norm_names(NormPlace place) {
  if (place == NormPlace::kBefore) return {"input_layernorm", "post_attention_layernorm"};
  return {"post_attention_layernorm", "post_feedforward_layernorm"};
}

std::array<std::int64_t, 2> shape_of(Slot slot, const ModelConfig& config) {
  const std::int64_t hidden = config.hidden_size, intermediate = config.intermediate_size;
  const std::int64_t query = std::int64_t{config.num_attention_heads} * config.head_dim;
  const std::int64_t key = std::int64_t{config.num_key_value_heads} * config.head_dim;
  switch (slot) {
    case Slot::kQ:
      return {query, hidden};
    case Slot::kK:
    case Slot::kV:
      return {key, hidden};
    case Slot::kO:
      return {hidden, query};
    case Slot::kGate:
    case Slot::kUp:
      return {intermediate, hidden};
    case Slot::kDown:
      return {hidden, intermediate};
    default:
      throw Error(ErrorKind::kInternal, "a norm is no matrix");
  }
}

bool has_bias(Slot slot, const ModelConfig& config) {
  if (slot == Slot::kQ || slot == Slot::kK || slot == Slot::kV) return config.qkv_bias;
  return slot == Slot::kO ? config.o_bias : config.mlp_bias;
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

std::span<const ModuleName> module_names() { return kModules; }

const ModuleName& module_name(std::string_view name) {
  std::string known;
  for (const ModuleName& module : kModules) {
    if (module.name == name) return module;
    known += (known.empty() ? "" : ", ") + std::string(module.name);
  }
  throw Error(ErrorKind::kUsage,
              fmt::format("a decoder layer has no module '{}'; it has {}", name, known));
}

std::string layer_prefix(int layer_idx) { return fmt::format("model.layers.{}.", layer_idx); }

LinearModule linear_module(const ModelConfig& config, Slot slot) {
  const ModuleName& module = *std::ranges::find(kModules, slot, &ModuleName::slot);
  const auto [rows, columns] = shape_of(slot, config);
  return {slot, module.parent, module.name, rows, columns, has_bias(slot, config)};
}

LinearModule linear_module(const ModelConfig& config, std::string_view name) {
  return linear_module(config, module_name(name).slot);
}

std::array<LinearModule, 7> linear_modules(const ModelConfig& config) {
  std::array<LinearModule, 7> modules;
  for (std::size_t i = 0; i < modules.size(); ++i)
    modules[i] = linear_module(config, kModules[i].slot);
  return modules;
}

std::vector<LayerTensor> layer_slots(const ModelConfig& config) {
  std::vector<LayerTensor> tensors;
  const auto norm = [&](Slot slot, const std::string& name, std::int64_t size) {
    tensors.push_back({slot, false, name + ".weight", {size}});
  };
  const auto [attention_norm, mlp_norm] = norm_names(config.norm_place);
  norm(Slot::kAttentionNorm, attention_norm, config.hidden_size);
  for (const LinearModule& module : linear_modules(config)) {
    if (module.slot == Slot::kGate) {
      if (config.qk_norm != QkNorm::kNone) {
        const bool is_wide = config.qk_norm == QkNorm::kWidth;
        norm(Slot::kQNorm,
             "self_attn.q_norm",
             std::int64_t{is_wide ? config.num_attention_heads : 1} * config.head_dim);
        norm(Slot::kKNorm,
             "self_attn.k_norm",
             std::int64_t{is_wide ? config.num_key_value_heads : 1} * config.head_dim);
      }
      norm(Slot::kMlpNorm, mlp_norm, config.hidden_size);
    }
    const std::string name = fmt::format("{}.{}", module.parent, module.name);
    tensors.push_back({module.slot, false, name + ".weight", {module.rows, module.columns}});
    if (module.has_bias) tensors.push_back({module.slot, true, name + ".bias", {module.rows}});
  }
  return tensors;
}

}  // namespace hedgerow::storage
