// From state to what is shown. Used by the live coordinator, which adds progress and workers, and
// by read_status().
#pragma once

#include <map>

#include "coordinator/fold.hpp"
#include "coordinator/status.hpp"

namespace hedgerow::coordinator {

struct LiveProgress {
  wire::Progress progress;
  double seconds_since_progress = 0.0;
};

// `progress` by fencing token; `now` in wall seconds. Fills num_layers, num_blocks, stages and
// tasks.
void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const std::map<std::uint64_t, LiveProgress>& progress,
                 double now);

[[nodiscard]] std::filesystem::path status_file(
    const storage::RunLayout& layout);  // logs/status.json

}  // namespace hedgerow::coordinator
