// What a run's recipe, its build and the GPUs of this machine come to. What is computed where in
// the end is the worker's choice (worker/device/device.hpp).
#pragma once

#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator::cli {

// Whether the run's workers will compute on GPUs, as far as it can be told here: local workers
// follow this machine, workers elsewhere are taken to have what the build is for.
[[nodiscard]] bool computes_on_gpus(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

// Throws kUsage if local workers are to compute on GPUs that this build cannot use, kUnavailable if
// none is visible.
void require_device(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

}  // namespace hedgerow::coordinator::cli
