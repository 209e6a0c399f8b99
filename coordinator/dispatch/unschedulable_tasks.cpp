#include "coordinator/dispatch/unschedulable_tasks.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace hedgerow::coordinator {
namespace {

constexpr const char* kNobodyIsThere =
    "waits for a worker, and none is connected; 'hedgerow worker --run DIR' joins, on any machine "
    "that sees the run directory";

std::string mib(std::uint64_t bytes) { return std::to_string((bytes + (1U << 20) - 1) >> 20); }

}  // namespace

std::string describe(const Misfit& misfit) {
  return "needs " + mib(misfit.needs_bytes) + " MiB of memory, the largest worker (" +
         misfit.largest + ") has " + std::to_string(misfit.has_bytes >> 20) +
         " MiB; start a worker where there is more memory, or begin a run with a smaller "
         "plan.layers_per_block or plan.sequences_per_forward";
}

UnschedulableTasks::UnschedulableTasks(const MemoryNeeds& needs,
                                       std::vector<std::string> own_workers,
                                       bool needs_external_workers)
    : needs_(needs),
      own_workers_(std::move(own_workers)),
      needs_external_workers_(needs_external_workers) {}

std::vector<TaskId> UnschedulableTasks::look(const State& state,
                                             const std::vector<WorkerView>& connected,
                                             TimePoint now) {
  std::map<TaskId, TimePoint> since;
  shown_.clear();
  std::vector<TaskId> given_up;
  const auto has_waited = [&](const TaskId& id, std::chrono::seconds timeout) {
    const auto before = since_.find(id);
    const TimePoint begin = before == since_.end() ? now : before->second;
    since[id] = begin;
    return now - begin >= timeout;
  };
  for (const Misfit& misfit : misfits(state, connected, needs_)) {
    if (!has_waited(misfit.task, kUnschedulableTimeout)) continue;
    shown_[misfit.task] = describe(misfit);
    if (nobody_else_comes(connected)) given_up.push_back(misfit.task);
  }
  if (connected.empty() && needs_external_workers_) {
    const std::set<TaskId>& ready = state.index.ready;
    const auto first = std::find_if(
        ready.begin(), ready.end(), [](const TaskId& id) { return wire::is_pulled(id.stage); });
    if (first != ready.end() && has_waited(*first, kNoWorkerTimeout))
      shown_[*first] = kNobodyIsThere;
  }
  since_ = std::move(since);
  return given_up;
}

bool UnschedulableTasks::nobody_else_comes(const std::vector<WorkerView>& connected) const {
  const auto is_own = [this](const WorkerView& worker) {
    return std::find(own_workers_.begin(), own_workers_.end(), worker.uuid) != own_workers_.end();
  };
  return !own_workers_.empty() && connected.size() == own_workers_.size() &&
         std::all_of(connected.begin(), connected.end(), is_own);
}

std::vector<std::string> UnschedulableTasks::warnings() const {
  std::map<Stage, std::pair<TaskId, int>> stages;  // the first task of each, and how many more
  for (const auto& [id, text] : shown_) {
    const auto [stage, is_first] = stages.try_emplace(id.stage, id, 0);
    if (!is_first) ++stage->second.second;
  }
  std::vector<std::string> lines;
  for (const auto& [stage, first] : stages) {
    const auto& [id, others] = first;
    lines.push_back(to_string(id) +
                    (others > 0 ? " (and " + std::to_string(others) + " more)" : "") + " " +
                    shown_.at(id));
  }
  return lines;
}

}  // namespace hedgerow::coordinator
