// Where a run stands, in sentences: what `explain` says before the events that led there. Pure
// functions of its status and its history.
#pragma once

#include <string>
#include <vector>

#include "coordinator/status/status.hpp"
#include "storage/history/history.hpp"

namespace hedgerow::coordinator::cli {

// "block 3 (layers 15-19) is ready and waits for a free worker; it goes on from step 48 of 60; last
// measured MSE 0.0123, worst layer 17 with 0.02", then a sentence on the capture of what it reads.
[[nodiscard]] std::vector<std::string> explain_block(const RunStatus& status,
                                                     int block,
                                                     const storage::History* history = nullptr);

// One sentence a block, and one for each other stage.
[[nodiscard]] std::vector<std::string> explain_run(const RunStatus& status,
                                                   const storage::History* history = nullptr);

// A table of what each stage has taken (time, memory of a process, disk and, on GPUs, GPU-hours)
// beside what it was planned to take; empty for a run without a plan.
[[nodiscard]] std::vector<std::string> plan_lines(const RunStatus& status, int width);

// Whether an event tells of something that went wrong, was given back or came back. `explain` shows
// these events of a run, and the others with --all.
[[nodiscard]] bool is_trouble(const ExplainedEvent& event);

}  // namespace hedgerow::coordinator::cli
