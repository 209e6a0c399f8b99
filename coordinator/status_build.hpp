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

// What the journal does not tell of the work ahead. All of it may be unknown.
struct JobSize {
  std::int64_t transfer_steps = 0, finetune_steps = 0;
  std::map<std::string, double> work;  // by stage: floating-point operations, as planned
};

// `progress` by fencing token; `now` in wall seconds. Fills num_layers, num_blocks, stages, tasks,
// fraction and eta_seconds.
void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const std::map<std::uint64_t, LiveProgress>& progress,
                 double now,
                 const JobSize& size = {});

// The last validation of each transfer, which outlives the attempt that made it: a block that goes
// on from its checkpoint is as good as it was.
class MeasuredMse {
 public:
  MeasuredMse() = default;
  explicit MeasuredMse(const RunStatus& published) { fill_from(published); }
  // Learns from the attempts that have measured, and fills layer_mse of those that have not yet.
  void fill(RunStatus& status);

 private:
  void fill_from(const RunStatus& status);
  std::map<std::string, std::vector<double>> by_task_;
};

// As the last coordinator left it; nullopt if there is none that can be read.
[[nodiscard]] std::optional<RunStatus> published_status(const storage::RunLayout& layout);

[[nodiscard]] std::filesystem::path status_file(
    const storage::RunLayout& layout);  // logs/status.json

}  // namespace hedgerow::coordinator
