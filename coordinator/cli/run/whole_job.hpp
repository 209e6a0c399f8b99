// From a study of variants to the whole job of one of them.
#pragma once

#include <optional>
#include <string>

#include "storage/files/run_layout.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// The recipe in which every layer trains as the variant's did (storage::kOwnStudent: as the
// recipe's own), with the last stage, at the steps of a recipe that names none. Throws kUsage
// naming the variants that there are.
[[nodiscard]] storage::Recipe whole_job(const storage::Recipe& study,
                                        const std::string& variant,
                                        const std::string& run);

// What that job is planned to take by the workers of the study's recipe, or of its cluster file.
struct WholeJob {
  double seconds = 0.0, gpu_hours = 0.0, cost = 0.0;
};
// Nullopt: it cannot be planned here, since the model or a text is not.
[[nodiscard]] std::optional<WholeJob> planned_whole_job(const storage::RunLayout& study,
                                                        const storage::Recipe& recipe,
                                                        const std::string& variant);

}  // namespace hedgerow::coordinator::cli
