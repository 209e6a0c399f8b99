// Text to tokens files through deploy/huggingface/make_tokens.py: the command `tokenize`, and `run`
// before it starts.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/terminal/terminal.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

struct TokenizeRequest {
  storage::Recipe recipe;
  std::string model;  // whose tokenizer
  storage::TokensOf of = storage::DataStage::kTransfer;
  std::filesystem::path out;  // appears when it is complete
};

// The script's "done" object (sequences, num_train, seq_len, tokens, ...); null if it was
// interrupted. Throws child_error.
[[nodiscard]] nlohmann::json tokenize(const TokenizeRequest& request, Terminal& terminal);

// Those of the recipe's tokens files that are still to be made at `layout`, which need not exist
// yet.
[[nodiscard]] std::vector<storage::TokensOf> missing_tokens(const storage::RunLayout& layout,
                                                            const storage::Recipe& recipe);

// Removes all tokens files of a run, because they may be of other texts than its recipe's.
void remove_tokens(const storage::RunLayout& layout);

// Makes the tokens files of a run that are missing; stages that ask for the same get one file, the
// later one by a link. false: interrupted.
bool tokenize_missing(const storage::RunLayout& layout,
                      const storage::Recipe& recipe,
                      Terminal& terminal);

// "1,204 sequences of 512 tokens, 1,196 for training" of a "done" object.
[[nodiscard]] std::string tokens_text(const nlohmann::json& done);

}  // namespace hedgerow::coordinator::cli
