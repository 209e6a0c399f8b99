// The image in which `hedgerow submit --slurm` lets a run work (slurm.container of the cluster
// file): whether it is there, and which folders of the nodes must be bound into it. Called by the
// command, before it makes the job scripts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// Throws kUsage unless the image, a .sif file or the folder of one, is there. Whether the nodes see
// it too, the job script looks.
void require_image(const std::filesystem::path& image, const std::string& cluster_file);

// The run directory, the model's folder and those of the texts, under the same paths inside as
// outside; where a path leads through links, what it leads to as well. Sorted, none inside another.
// Throws kUsage for a path that Apptainer cannot be given, and if the model is not there.
[[nodiscard]] std::vector<std::string> folders_to_bind(const std::filesystem::path& run,
                                                       const storage::Recipe& recipe);

}  // namespace hedgerow::coordinator::cli
