// Transformers' GPT2LMHeadModel as a Transformer of the laboratory: the same model, so that what a
// study trains in this shape is GPT-2's shape. A test reads its weights by these names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/laboratory/transformer.hpp"

namespace hedgerow::worker::laboratory {

// The shape as options: layer norm before each branch, learned positions, tied head, biases, GELU
// by tanh, an MLP of four times the width.
[[nodiscard]] TransformerOptions gpt2_options(std::int64_t vocab_size,
                                              std::int64_t hidden_size,
                                              std::int64_t num_layers,
                                              std::int64_t num_heads,
                                              std::int64_t max_positions);

// The parameters' names in Transformer::named() and in transformers' files; Conv1D's weights are
// [in, out] there, as ours.
struct Gpt2Name {
  std::string ours, theirs;
};
[[nodiscard]] std::vector<Gpt2Name> gpt2_names(std::int64_t num_layers);

}  // namespace hedgerow::worker::laboratory
