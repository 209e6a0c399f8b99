// What a text file holds, by its first records: `init` proposes its format from them, and whoever
// reads a source of format "text" is told when it is JSON, whose braces and keys would be learned
// as if they were prose. Reads at most a MiB, through gzip. Which records a format takes is
// deploy/huggingface/sources.py's to say.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

struct SourceFormat {
  std::string format;  // of a recipe's source; empty: JSON that no format takes as it is
  std::string what;    // for people: "Alpaca records", "plain text"
  std::vector<std::string> fields{};  // of the first record; empty if there is none
  std::string advice{};               // where a template or another format cannot help
};

// Plain text where the file cannot be read: whoever reads all of it says why.
[[nodiscard]] SourceFormat look_at_source(const std::filesystem::path& path);

// "data.transfer.sources: a.jsonl: holds ..." for each source of format "text" that is JSON; once
// for a file that several of the stages read.
[[nodiscard]] std::vector<std::string> json_read_as_text(
    const storage::Recipe& recipe, const std::vector<storage::TokensOf>& files);

}  // namespace hedgerow::coordinator::cli
