// Which task a worker that asks for one gets. Pure: the same state and workers give the same
// answer. Workers pull one task at a time (credit 1). Captures go ahead of transfers (everything
// waits for them), transfers ahead of the teacher's logits and those ahead of evaluations; within a
// kind a worker prefers the block whose weights it holds; a task must fit the worker's memory; one
// that failed goes to another worker if there is one; and while a boundary is to be deleted soon,
// no capture runs more than one boundary ahead of it, so that the disk holds what the plan said.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coordinator/plan/plan.hpp"
#include "coordinator/state/state.hpp"
#include "coordinator/wire/task.hpp"

namespace hedgerow::coordinator {

struct WorkerView {
  std::string uuid;
  std::uint64_t memory_bytes = 0;  // 0: unknown, everything fits
  int held_block = -1;             // whose weights it holds
};

// Memory that one task of a stage takes, from the plan.
struct MemoryNeeds {
  std::uint64_t capture = 0, transfer = 0, logits = 0, evaluate = 0;
  std::uint64_t finetune = 0;  // of one rank; mpirun places those, not the scheduler
};
[[nodiscard]] MemoryNeeds needs_of(const Plan& plan);
[[nodiscard]] std::uint64_t need_of(const TaskId& id, const MemoryNeeds& needs);

// `connected` includes the asking worker. nullopt: nothing for it now.
[[nodiscard]] std::optional<TaskId> choose_task(const State& state,
                                                const WorkerView& worker,
                                                const std::vector<WorkerView>& connected,
                                                const MemoryNeeds& needs,
                                                const KeepBoundaries& keep);

// False: whatever is ready is a capture that waits for an earlier boundary's deletion. If nothing
// is granted either, that will not come: a quarantined task keeps it.
[[nodiscard]] bool anything_to_grant(const State& state, const KeepBoundaries& keep);

// A ready task that no connected worker has the memory for.
struct Misfit {
  TaskId task;
  std::uint64_t needs_bytes = 0;
  std::string largest;  // the worker that has most
  std::uint64_t has_bytes = 0;
};
// Empty while no worker is connected: then nothing is known.
[[nodiscard]] std::vector<Misfit> misfits(const State& state,
                                          const std::vector<WorkerView>& connected,
                                          const MemoryNeeds& needs);

// The task as it goes over the wire, under `token`. A capture covers the first run of missing
// shards of its piece.
[[nodiscard]] wire::Task make_wire_task(const State& state, const TaskId& id, std::uint64_t token);

}  // namespace hedgerow::coordinator
