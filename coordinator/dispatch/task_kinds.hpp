// What the coordinator does with each kind of task, a row each: the memory that its worker needs,
// the files that it makes, the task as it goes over the wire. What it waits for is
// state/task_graph; its word, whether it is pulled or has checkpoints and who reads its files is
// wire/task.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/dispatch/scheduler.hpp"
#include "coordinator/state/state.hpp"

namespace hedgerow::coordinator {

struct TaskKind {
  Stage stage;
  std::uint64_t MemoryNeeds::*memory;  // null: copies bytes
  // Paths in the run directory under this token, sorted; those of a capture are its shards, which
  // it commits one by one.
  std::vector<std::string> (*outputs)(const TaskId& id, std::uint64_t token);
  // That may be there besides.
  std::vector<std::string> (*optional_outputs)(std::uint64_t token);
  // Range and inputs; the rest of the task is filled in already. Null: never sent.
  void (*fill)(const State& state, const TaskId& id, wire::Task& task);
};
[[nodiscard]] const TaskKind& kind_of(Stage stage);

}  // namespace hedgerow::coordinator
