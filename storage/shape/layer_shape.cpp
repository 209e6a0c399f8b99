#include "storage/shape/layer_shape.hpp"

#include <algorithm>

namespace hedgerow::storage {

std::int64_t matrix_parameters(const ModelConfig& model) {
  std::int64_t parameters = 0;
  for (const LinearModule& module : linear_modules(model))
    parameters += module.rows * module.columns;
  return parameters;
}

std::int64_t attention_parameters(const ModelConfig& model) {
  std::int64_t parameters = 0;
  for (const LinearModule& module : linear_modules(model)) {
    if (module.parent == "self_attn") parameters += module.rows * module.columns;
  }
  return parameters;
}

std::int64_t layer_parameters(const ModelConfig& model) {
  std::int64_t parameters = 0;
  for (const LayerTensor& tensor : layer_slots(model)) {
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.shape) elements *= size;
    parameters += elements;
  }
  return parameters;
}

std::int64_t map_parameters(const AttentionSpec& spec, const ModelConfig& model) {
  const std::int64_t heads = model.num_attention_heads;
  const std::int64_t maps = heads + spec.num_key_maps(heads, model.num_key_value_heads);
  const std::int64_t columns = spec.has_projection() ? spec.projected_dim() : 0;
  return maps * columns * (model.head_dim + (spec.bias ? 1 : 0)) + heads;
}

std::int64_t lora_parameters(const ModelConfig& model,
                             const std::vector<std::string>& modules,
                             int rank) {
  std::int64_t parameters = 0;
  for (const std::string& name : modules) {
    const LinearModule module = linear_module(model, name);
    parameters += rank * (module.rows + module.columns);
  }
  return parameters;
}

std::int64_t kept_activation_bytes(const ModelConfig& model,
                                   std::int64_t element_bytes,
                                   const std::vector<std::string>& lora_modules,
                                   int rank) {
  constexpr std::int64_t kFloat = 4;
  const std::int64_t query = std::int64_t{model.num_attention_heads} * model.head_dim;
  const std::int64_t key = std::int64_t{model.num_key_value_heads} * model.head_dim;
  const bool has_mlp_lora = rank > 0 && std::ranges::any_of(lora_modules, [](const auto& name) {
                              const Slot slot = module_name(name).slot;
                              return slot == Slot::kGate || slot == Slot::kUp;
                            });
  const std::int64_t wide = model.hidden_size + query + std::int64_t{4} * rank +
                            (has_mlp_lora ? model.hidden_size + std::int64_t{2} * rank : 0);
  const std::int64_t narrow =
      4 * (query + key) + model.hidden_size + 2 * std::int64_t{model.intermediate_size};
  const std::int64_t for_norms =
      (model.qk_norm == QkNorm::kNone ? 0 : query + 2 * key) +
      (model.norm_place == NormPlace::kBefore ? 0 : std::int64_t{2} * model.hidden_size);
  return kFloat * wide + element_bytes * (narrow + for_norms);
}

}  // namespace hedgerow::storage
