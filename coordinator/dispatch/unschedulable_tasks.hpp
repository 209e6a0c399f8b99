// Tasks that wait because no worker has the memory for them. A worker with more may still come, so
// they are shown first, with the arithmetic; where the run has only the workers that it started
// itself, none will, and they are given up: the rest of the run finishes and is partial. Where it
// starts none and none is there, that is shown of the first task. Time comes in by arguments;
// called by the dispatcher.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/host/clock.hpp"

namespace hedgerow::coordinator {

// Workers connect one after the other, and the first to come need not be the largest.
inline constexpr std::chrono::seconds kUnschedulableTimeout{10};
// Those that were sent away for the finetune stage take a while to come again.
inline constexpr std::chrono::seconds kNoWorkerTimeout{60};

class UnschedulableTasks {
 public:
  // `own_workers`: the uuids of those that this run starts itself; none: all come from elsewhere.
  // `needs_external_workers`: and nothing that the run was told to launch starts them either.
  UnschedulableTasks(const MemoryNeeds& needs,
                     std::vector<std::string> own_workers,
                     bool needs_external_workers);

  // The tasks to give up now.
  [[nodiscard]] std::vector<TaskId> look(const State& state,
                                         const std::vector<WorkerView>& connected,
                                         TimePoint now);
  // What to show of the tasks that have waited for too long.
  [[nodiscard]] const std::map<TaskId, std::string>& shown() const { return shown_; }
  // The same in a line for each stage.
  [[nodiscard]] std::vector<std::string> warnings() const;

 private:
  [[nodiscard]] bool nobody_else_comes(const std::vector<WorkerView>& connected) const;

  MemoryNeeds needs_;
  std::vector<std::string> own_workers_;
  bool needs_external_workers_;
  std::map<TaskId, TimePoint> since_;
  std::map<TaskId, std::string> shown_;
};

[[nodiscard]] std::string describe(const Misfit& misfit);

}  // namespace hedgerow::coordinator
