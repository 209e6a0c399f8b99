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

// Wall seconds in which at least one task of a stage was granted, summed over terms.
class StageTimes {
 public:
  void observe(double at, const State& state);  // after each event, in order
  void close(double at);  // the coordinator's life ended: nothing runs any more
  [[nodiscard]] double seconds(Stage stage, double now) const;
  [[nodiscard]] double busy_seconds(double now) const;  // of any stage

 private:
  struct Interval {
    double total = 0.0;
    double since = -1.0;  // < 0: not running
    void observe(double at, bool is_running);
    [[nodiscard]] double seconds(double now) const;
  };
  std::array<Interval, kNumStages> stages_;
  Interval any_;
};

// Of what is shown of a run: a journal full of holes, or unknown peers, must not fill the screen.
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
