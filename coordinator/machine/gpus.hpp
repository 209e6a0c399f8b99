// GPUs as far as a program without CUDA can see them: the driver's device files, narrowed by
// CUDA_VISIBLE_DEVICES.
#pragma once

#include <filesystem>

namespace hedgerow::machine {

// `visible` is the value of CUDA_VISIBLE_DEVICES, null if it is not set; an empty list or one that
// begins with -1 hides all. Names that are no numbers (GPU-..., MIG-...) count one each.
[[nodiscard]] int num_visible_gpus(const std::filesystem::path& dev, const char* visible);
[[nodiscard]] int num_visible_gpus();  // of this process

}  // namespace hedgerow::machine
