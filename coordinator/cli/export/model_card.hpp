// The README.md of an export, as Hugging Face reads it: front matter that names the teacher, then
// for people what it is, how it was made, how good it is and how to load it.
#pragma once

#include <filesystem>
#include <string>

#include "coordinator/cli/export/model_choice.hpp"

namespace hedgerow::coordinator::cli {

// What only a run knows (steps, perplexities, errors) is left out for a choice without one. `out`
// is the export's directory. Throws kCorrupt for a student without its description.
[[nodiscard]] std::string model_card(const ModelChoice& choice, const std::filesystem::path& out);

// org/name where the teacher is or came from a hub's cache, else its directory's name.
[[nodiscard]] std::string teacher_name(const std::string& model);

}  // namespace hedgerow::coordinator::cli
