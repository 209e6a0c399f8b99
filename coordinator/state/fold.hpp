// A journal folded: the state, and beside it what no decision reads but people ask for (how long
// each stage took, what was damaged). One path for the restart of a coordinator and for `status`
// without one.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "coordinator/state/state.hpp"
#include "storage/journal/disk.hpp"
#include "storage/journal/journal.hpp"

namespace hedgerow::coordinator {

// What each stage has taken so far, summed over terms. A journal's snapshot has none of it: what
// lies before one is not counted again.
class StageTimes {
 public:
  void observe(double at, const State& state);  // after each event, in order
  void close(double at);  // the coordinator's life ended: nothing runs any more
  // Wall seconds in which at least one of its tasks was granted.
  [[nodiscard]] double seconds(Stage stage, double now) const;
  // That its tasks were granted, each for itself.
  [[nodiscard]] double task_seconds(Stage stage, double now) const;
  // The most that the run's committed files came to while one of its tasks was granted.
  [[nodiscard]] std::uint64_t disk_bytes(Stage stage) const;
  [[nodiscard]] double busy_seconds(double now) const;  // of any stage

 private:
  struct Interval {
    double total = 0.0, task_total = 0.0;
    double since = 0.0;  // that so many run
    int running = 0;
    std::uint64_t disk_bytes = 0;
    void observe(double at, int now_running, std::uint64_t stored_bytes);
    [[nodiscard]] double passed(double now) const;  // since `since`
  };
  std::array<Interval, kNumStages> stages_;
  Interval any_;
};

// Warnings that are shown of a run: a journal full of holes, or unknown peers, must not fill the
// screen.
inline constexpr std::size_t kMaxWarnings = 20;
// Where there are too many the newest stay, behind a line that says so.
void add_warning(std::vector<std::string>& warnings, const std::string& warning);

struct FoldedRun {
  State state;
  StageTimes times;
  std::uint64_t term = 0;
  double last_at = 0.0;               // wall time of the last record
  std::vector<std::string> warnings;  // damage, records that no longer apply, notes
};

// Nothing replayed: a run that has not begun.
[[nodiscard]] storage::ReplayResult replay_if_any(const storage::RunLayout& layout,
                                                  const storage::Disk& disk = storage::os_disk());

// Never throws for damage: a bad record is skipped and named, and what it would have committed is
// redone. Throws kUsage for a snapshot whose format this build does not know.
[[nodiscard]] FoldedRun fold(const storage::ReplayResult& replayed);

// One event in words, without its subject: "granted to node7-0 under fencing token 41".
[[nodiscard]] std::string describe(const Event& event);
// The task an event concerns: its own, or that of its token in `state` (before the event). Empty:
// the run.
[[nodiscard]] std::string subject_of(const Event& event, const State& state);

}  // namespace hedgerow::coordinator
