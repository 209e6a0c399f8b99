// What one tokens file is made from: a data section of a recipe with every key filled in and the
// rules between sections applied. It is all that deploy/huggingface/make_tokens.py gets to know of
// a recipe; its README has the fields.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::storage {

// Looks at the texts' symbolic links. Throws kUsage where behind them one stage would learn what
// another is judged by; Recipe::validate() knows the paths as they are written, and no disk.
[[nodiscard]] nlohmann::json tokens_section(const Recipe& recipe, const TokensOf& of);

// The tokens file that serves `of` as well, since both stages ask for the same: finetune's is the
// transfer's where their sections are equal. nullopt: it has its own.
[[nodiscard]] std::optional<TokensOf> shares_tokens_of(const Recipe& recipe, const TokensOf& of);

}  // namespace hedgerow::storage
