// Transformers' BertModel as a Transformer of the laboratory, and the directory of one that was
// trained elsewhere as a study reads it: MiniLM and other sentence encoders. A test compares it
// with transformers'.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

#include "worker/laboratory/transformer.hpp"

namespace hedgerow::worker::laboratory {

// The shape that DIR/config.json says: layer norm behind each sum and of the embedding, learned
// positions, biases, exact GELU, both ways. Throws kUsage naming the field where it is another
// model, or one that would be computed otherwise than transformers does.
[[nodiscard]] TransformerOptions bert_options(const std::filesystem::path& directory);

// Writes the weights of DIR/model.safetensors into a model of those options. The first token type
// is added to the positions: every token has it. Throws as the readers of storage do, and kUsage
// where a shape is not the model's.
void load_bert(const Transformer& model, const std::filesystem::path& directory);

}  // namespace hedgerow::worker::laboratory
