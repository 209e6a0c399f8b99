// What a decoder layer weighs: its matrices by module, its parameters and what a forward of it keeps
// for the backward. Pure arithmetic over a model's configuration, shared by the plan and the
// programs which allocate.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/model/attention_spec.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::storage {

// Weights of a layer's seven matrices, without biases and norms; of the four around the attention.
[[nodiscard]] std::int64_t matrix_parameters(const ModelConfig& model);
[[nodiscard]] std::int64_t attention_parameters(const ModelConfig& model);
// All of a layer, as layer_slots() lists them.
[[nodiscard]] std::int64_t layer_parameters(const ModelConfig& model);

// A student's layer: both maps, their biases and the window factors.
[[nodiscard]] std::int64_t map_parameters(const AttentionSpec& spec, const ModelConfig& model);

// Matrices A and B of a layer.
[[nodiscard]] std::int64_t lora_parameters(const ModelConfig& model,
                                           const std::vector<std::string>& modules,
                                           int rank);

// What the finetune's forward keeps of a layer for its backward, of one token (worker/finetune's
// LayerActivations), with the attention's graph counted as its inputs and output once more.
// `element_bytes` of the compute dtype; LoRA's inputs are fp32. rank 0: without LoRA.
[[nodiscard]] std::int64_t kept_activation_bytes(const ModelConfig& model,
                                                 std::int64_t element_bytes,
                                                 const std::vector<std::string>& lora_modules,
                                                 int rank);

}  // namespace hedgerow::storage
