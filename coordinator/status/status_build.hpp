// From state to what is shown. Used by the live coordinator, which adds progress and workers, and
// by read_status().
#pragma once

#include <functional>
#include <map>
#include <optional>

#include "coordinator/state/fold.hpp"
#include "coordinator/status/status.hpp"

namespace hedgerow::coordinator {

struct LiveProgress {
  wire::Progress progress;
  double seconds_since_progress = 0.0;
  std::optional<Speed> speed{};
};

// Progress of the attempt under a fencing token; nullopt: it has not reported yet.
using ProgressOf = std::function<std::optional<LiveProgress>(std::uint64_t token)>;

// What the journal does not tell of the work ahead. All of it may be unknown.
struct JobSize {
  std::int64_t transfer_steps = 0, finetune_steps = 0;
  std::map<Stage, double> work;        // by stage: floating-point operations, as planned
  int finetune_ranks = 1;              // each has a GPU, where there are any
  std::optional<RecordedPlan> plan{};
};

// What is written every second must not grow with the run: no more tasks than this are listed, nor
// workers. Captures are left out first, and of them first those that no worker works on and that
// have no trouble: their stage's numbers say all of them.
inline constexpr std::size_t kMaxListed = 1'000;

// `progress` may be empty; `now` in wall seconds. Fills num_layers, num_blocks, stages, tasks,
// tasks_left_out, fraction, elapsed_seconds, eta_seconds, so_far and to_come.
void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const ProgressOf& progress,
                 double now,
                 const JobSize& size = {});

// As the last coordinator left it; nullopt if there is none that can be read.
[[nodiscard]] std::optional<RunStatus> published_status(const storage::RunLayout& layout);

[[nodiscard]] std::filesystem::path status_file(
    const storage::RunLayout& layout);  // logs/status.json

}  // namespace hedgerow::coordinator
