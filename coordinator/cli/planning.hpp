// A recipe, its model and its data brought together for a plan: what `plan`, `doctor` and `run` ask
// for.
#pragma once

#include <filesystem>
#include <string>

#include "coordinator/plan.hpp"
#include "storage/recipe.hpp"

namespace hedgerow::coordinator::cli {

// The recipe with every path made absolute: relative ones start at its folder. org/name stays as it
// is.
[[nodiscard]] storage::Recipe load_recipe(const std::filesystem::path& file);

// The plan of a recipe for a run at `directory` (which need not exist yet). Before the tokens files
// are there, the number of sequences is what the step budget asks for.
[[nodiscard]] Plan plan_of(const std::filesystem::path& recipe_file,
                           const std::filesystem::path& directory);
[[nodiscard]] Plan plan_of(const storage::Recipe& recipe, const std::filesystem::path& directory);

}  // namespace hedgerow::coordinator::cli
