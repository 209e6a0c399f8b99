// Measures this machine for a cluster file: a layer in hedgerow-worker on every core or a GPU, how
// long that program takes to start, how fast one process reads the disk. Blocks for some ten
// seconds; what is shown of it is the caller's.
#pragma once

#include <filesystem>
#include <optional>

#include "coordinator/bench/layer_probe.hpp"
#include "coordinator/cli/terminal/terminal.hpp"
#include "storage/model/model_config.hpp"
#include "storage/recipe/cluster_file.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// Whether workers of this build would compute on a GPU here.
[[nodiscard]] bool has_usable_gpus();

struct MeasuredMachine {
  storage::NodeKind node;  // its figures; name and count are not
  measure::LayerProbe probe;  // what was timed, by each of `processes` at once
  measure::LayerSeconds seconds;
  measure::ProbedDevice device;
  int processes = 1;
};

// At the shapes of the recipe's attention and text and of `model`; without a recipe at those of
// SmolLM2-135M, on a GPU of Llama 3 8B. `directory`: where the run would lie; it, or its nearest
// folder that exists, holds a file of 256 MB for a moment. nullopt: interrupted. Throws
// kUnavailable (a program that fails, seconds that tell no speed), kExhausted (the disk is full).
[[nodiscard]] std::optional<MeasuredMachine> measure_machine(
    const std::optional<storage::Recipe>& recipe,
    const std::optional<storage::ModelConfig>& model,
    const std::filesystem::path& directory,
    Terminal& terminal);

}  // namespace hedgerow::coordinator::cli
