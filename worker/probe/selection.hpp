// The sequences of a tokens file whose queries attend furthest back, as another tokens file:
// LoLCATs (arXiv 2410.10254, eq. 8 and table 22) picks the text that it trains on by this length.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "storage/shards/tokens_file.hpp"

namespace hedgerow::worker {

// by_sequence [{"sequence", "look_back"}] -> its `count` entries of the longest look_back, longest
// first; of equal ones that of the smaller index is first.
[[nodiscard]] nlohmann::json furthest_looking(const nlohmann::json& by_sequence,
                                              std::int64_t count);

// Publishes the selected sequences, in their order, with the tokenizer and the sources of `tokens`.
// All of them are for training: the order is not that of the file's two parts, and a user who wants
// some held out gives another file. Throws kUsage where the path cannot be written.
void write_selection(const std::filesystem::path& path,
                     const storage::TokenSequences& tokens,
                     const nlohmann::json& selected);

}  // namespace hedgerow::worker
