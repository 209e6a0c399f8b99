// LoRA (arXiv 2106.09685) on the projections of attention and MLP: y = W x + (alpha / r) B (A x), W
// frozen. The adapter on disk is PEFT's: adapter_config.json + adapter_model.safetensors with names
// `base_model.model.model.layers.{i}.self_attn.q_proj.lora_A.weight` [r, in] and `lora_B` [out, r],
// fp32. Trained by worker/finetune, read by evaluate, generate and merge.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "storage/model/model_config.hpp"
#include "storage/recipe/recipe.hpp"
#include "worker/model/layer/layer.hpp"
#include "worker/model/trained_parts.hpp"

namespace hedgerow::worker {

struct LoraAdapter {
  int rank = 8;
  double alpha = 16.0;
  std::vector<std::string> target_modules;  // a subset of storage::module_names(), in that order
  // By layer, then module. Of our own every target is there, of PEFT's those that it names in a
  // layer; of layers that lie on other ranks none.
  std::vector<std::map<std::string, LoraPair>> layers;
  TrainedTensors trained{};  // what the finetune trained besides (trained_parts.hpp)

  [[nodiscard]] double scaling() const { return alpha / rank; }
  [[nodiscard]] const LoraPair* find(int layer_idx,
                                     const std::string& module) const;  // nullptr: not a target
  [[nodiscard]] LayerLora of_layer(int layer_idx) const;
};

// A of every target drawn as PEFT draws it, U(-sqrt(1/in), sqrt(1/in)) (kaiming_uniform with a =
// sqrt(5)), but from Philox keyed by (seed, layer, module): any mesh starts the same. B is zero. Of
// the layers that `has` names alone, if it is given. Throws kUsage for an unknown module.
[[nodiscard]] LoraAdapter start_adapter(const storage::ModelConfig& config,
                                        const storage::FinetuneSection& finetune,
                                        std::uint64_t seed,
                                        const std::function<bool(int layer_idx)>& has = {});

// PEFT's name of "lora_A" or "lora_B", as it stands in adapter_model.safetensors and in
// checkpoints.
[[nodiscard]] std::string lora_name(int layer_idx,
                                    const std::string& module,
                                    const std::string& matrix);

// adapter_config.json of this adapter. `base_model` is what the recipe calls the teacher.
[[nodiscard]] nlohmann::json adapter_config(const LoraAdapter& adapter,
                                            const std::string& base_model);

// Writes adapter_config.json and adapter_model.safetensors into an existing directory; fsyncs. The
// matrices may lie on any device.
void save_adapter(const std::filesystem::path& directory,
                  const LoraAdapter& adapter,
                  const std::string& base_model);

// With its trained_parameters.safetensors, if it has one. Of the layers that `has` names alone, if
// it is given. Strict: exactly the names and shapes that its adapter_config.json asks for
// (peft_config.hpp, whose errors it throws). Throws kCorrupt naming the first missing, surplus or
// misshaped tensor.
[[nodiscard]] LoraAdapter load_adapter(const std::filesystem::path& directory,
                                       const storage::ModelConfig& config,
                                       const std::function<bool(int layer_idx)>& has = {});

// W + (alpha / r) B A, computed in fp32 and rounded once to W's dtype; W [out, in].
[[nodiscard]] at::Tensor merged_weight(const at::Tensor& weight,
                                       const LoraPair& pair,
                                       double scaling);

// Adds the adapter of one layer to its weights, rounded once, and puts its trained norms in place:
// what generate, evaluate and a merged export compute with. Products without LoRA stay as they are.
// The weights are not packed.
void merge_into(LayerWeights& layer,
                const LoraAdapter& adapter,
                int layer_idx,
                const storage::ModelConfig& config);

}  // namespace hedgerow::worker
