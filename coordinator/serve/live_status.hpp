// What a coordinator shows of its run while it lives, and how the run ended. Called by its loop.
#pragma once

#include "coordinator/dispatch/dispatcher.hpp"
#include "coordinator/host/clock.hpp"
#include "coordinator/serve/finetune_stage.hpp"
#include "coordinator/serve/run_service.hpp"
#include "coordinator/state/fold.hpp"
#include "coordinator/status/status_build.hpp"
#include "coordinator/wire/coordinator_file.hpp"

namespace hedgerow::coordinator {

struct LiveRun {
  const storage::RunLayout& layout;
  const wire::CoordinatorFile& file;
  const Dispatcher& dispatcher;
  const FoldedRun& folded;
  const JobSize& size;
  const FinetuneStage* stage = nullptr;  // null: none is under way
  std::string web = {};  // address of the run's page
  bool is_stopping = false;
  bool has_room = true;  // for workers
  TimePoint now;
};

[[nodiscard]] RunStatus live_status(const LiveRun& run);

// Replaces status.json. Readers see the old or the new file, never half of one, also on a full
// disk. Not synced: it is worth nothing after a crash. Never throws: the next second tries again.
void write_status(const storage::RunLayout& layout, const RunStatus& status);

// `leaves_finetune`: all but the finetune stage was asked for.
[[nodiscard]] RunOutcome outcome_of(RunPhase phase,
                                    const State& state,
                                    RunStatus status,
                                    bool leaves_finetune);

}  // namespace hedgerow::coordinator
