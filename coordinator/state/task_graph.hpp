// Which tasks a run has and what each of them waits for: pure functions of a geometry and a state.
// What is done with a kind of task when it may run is coordinator/dispatch/task_kinds.
#pragma once

#include <string>
#include <vector>

#include "coordinator/state/state.hpp"

namespace hedgerow::coordinator {

// In no particular order; State keeps them by TaskId.
[[nodiscard]] std::vector<TaskId> tasks_of(const Geometry& geometry);

// In words, for status and explain: what a pending task waits for; empty when everything that it
// reads is committed.
[[nodiscard]] std::string waits_for(const State& state, const TaskRecord& task);
// Pending, and waits for nothing.
[[nodiscard]] bool is_ready(const State& state, const TaskRecord& task);

// The tasks that wait for whole stages and not for shards: whether one of them is ready may change
// with any task of another stage than capture.
template <typename Function>
void for_each_late_task(const Geometry& geometry, const Function& function) {
  function(TaskId::assemble());
  if (geometry.finetunes) function(TaskId::finetune());
  for (const Subject subject : geometry.evaluates) {
    for (int piece = 0; piece < geometry.num_evaluate_pieces; ++piece)
      function(TaskId::evaluate(subject, piece));
    function(TaskId::evaluate(subject));
  }
}

}  // namespace hedgerow::coordinator
