// GPUs as far as a program without CUDA can see them: the driver's device files, narrowed by
// CUDA_VISIBLE_DEVICES. What is computed where is the worker's choice (worker/device.hpp).
#pragma once

#include <filesystem>
#include <string>

#include "storage/recipe.hpp"

namespace hedgerow::coordinator::cli {

// `visible` is the value of CUDA_VISIBLE_DEVICES, null if it is not set; an empty list or one that
// begins with -1 hides all. Names that are no numbers (GPU-..., MIG-...) count one each.
[[nodiscard]] int num_visible_gpus(const std::filesystem::path& dev, const char* visible);
[[nodiscard]] int num_visible_gpus();  // of this process

// Whether the run's workers will compute on GPUs, as far as it can be told here: local workers
// follow this machine, workers elsewhere are taken to have what the build is for.
[[nodiscard]] bool computes_on_gpus(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

// Throws kUsage if local workers are to compute on GPUs that this build cannot use, kUnavailable if
// none is visible.
void require_device(const storage::Recipe& recipe, bool has_cuda, int num_gpus);

}  // namespace hedgerow::coordinator::cli
