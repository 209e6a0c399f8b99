// A model directory's weights with a LoRA adapter added: the same files with the same tensors, the
// targets replaced by W + (alpha / r) B A, computed in fp32 and rounded once, and norms that the
// finetune trained by theirs, in fp32. Everything else is copied byte for byte.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>

#include "storage/model/model_config.hpp"
#include "worker/model/lora.hpp"

namespace hedgerow::worker {

// Targets are written in `compute_dtype`, as `evaluate` and `generate` merge them, or in the dtype
// that they have. Writes the weight files (and their index, where there is one) into `out`, which
// is made if need be. Other files of the model directory are the exporter's. Throws kUsage if `out`
// is the model directory itself or already holds weights. `progress` gets the share done, 0 to 1,
// by bytes.
void write_merged(const storage::ModelDirectory& model,
                  const LoraAdapter& adapter,
                  const std::filesystem::path& out,
                  std::optional<at::ScalarType> compute_dtype,
                  const std::function<void(double)>& progress = {});

}  // namespace hedgerow::worker
