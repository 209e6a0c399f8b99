// What a run reads and does not make: the teacher and the token files. A run goes on only from the
// ones it began with; half of it made from other data would look whole.
#pragma once

#include <filesystem>

#include "coordinator/state/events.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator {

// Hashes every tokens/*.h5 that exists. Throws kCorrupt when one cannot be read.
[[nodiscard]] RunInputs inputs_of(const storage::RunLayout& layout,
                                  const storage::ModelDirectory& model);

// Throws kUsage naming what changed: the teacher, or a token file that is missing, new or another.
void check_same_inputs(const RunInputs& recorded,
                       const RunInputs& now,
                       const storage::RunLayout& layout,
                       const std::filesystem::path& model);

}  // namespace hedgerow::coordinator
