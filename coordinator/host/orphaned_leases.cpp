#include "coordinator/host/orphaned_leases.hpp"

#include <algorithm>

namespace hedgerow::coordinator {

std::vector<std::uint64_t> held_by_dead(const State& state,
                                        const std::vector<wire::ChildRecord>& children,
                                        const Processes& processes) {
  std::vector<std::uint64_t> tokens;
  for (const auto& [token, id] : state.grants) {
    const TaskRecord& task = state.task(id);
    const bool is_stage = id.stage == Stage::kFinetune;
    const auto held = [&, token = token](const wire::ChildRecord& child) {
      const bool is_holder =
          is_stage ? child.fencing_token == token
                   : child.uuid == task.worker && child.incarnation == task.incarnation;
      return is_holder && !processes.is_alive(child.process);
    };
    if (std::any_of(children.begin(), children.end(), held)) tokens.push_back(token);
  }
  return tokens;
}

}  // namespace hedgerow::coordinator
