// Weights of transformers' GPT2LMHeadModel as a Transformer of the laboratory: the same model, so
// that what a study trains in this shape is GPT-2's shape.
#pragma once

#include <filesystem>

#include "worker/laboratory/transformer.hpp"

namespace hedgerow::worker::laboratory {

// The shape as options: layer norm before each branch, learned positions, tied head, biases, GELU by
// tanh, an MLP of four times the width.
[[nodiscard]] TransformerOptions gpt2_options(std::int64_t vocab_size,
                                              std::int64_t hidden_size,
                                              std::int64_t num_layers,
                                              std::int64_t num_heads,
                                              std::int64_t max_positions);

// Reads a safetensors file of such a model into `model`, which has gpt2_options. Throws kNotFound
// naming the file or the tensor, kUsage naming a parameter of another shape.
void load_gpt2(const Transformer& model, const std::filesystem::path& path);

}  // namespace hedgerow::worker::laboratory
