#include "coordinator/status_build.hpp"

#include <algorithm>
#include <array>

namespace hedgerow::coordinator {
namespace {

constexpr std::array<Stage, 5> kStages = {
    Stage::kCapture, Stage::kTransfer, Stage::kAssemble, Stage::kFinetune, Stage::kEvaluate};
// Below this share of its work a stage has no estimate yet.
constexpr double kMinFractionForEta = 0.02;

std::string state_word(const State& state, const TaskRecord& task) {
  switch (task.state) {
    case TaskState::kPending:
      return is_ready(state, task) ? "ready" : "waiting";
    case TaskState::kGranted:
      return "running";
    case TaskState::kDone:
      return "done";
    case TaskState::kDropped:
      return "dropped";
    case TaskState::kQuarantined:
      return "quarantined";
  }
  return "waiting";
}

// How much of a task is done, 0 to 1: shards for a capture, steps for the rest.
double fraction_of(const State& state, const TaskRecord& task, const wire::Progress* progress) {
  if (task.state == TaskState::kDone || task.state == TaskState::kDropped) return 1.0;
  double fraction = 0.0;
  if (task.id.stage == Stage::kCapture) {
    const auto& shards = state.shards[static_cast<std::size_t>(task.id.block) + 1];
    const ShardRange range = shards_of_piece(*state.geometry, task.id.piece);
    const auto begin = shards.begin() + range.first;
    fraction = static_cast<double>(std::count_if(begin,
                                                 begin + range.count,
                                                 [](const ShardRecord& shard) {
                                                   return shard.state == ShardState::kCommitted;
                                                 })) /
               range.count;
  }
  // While it loads, a task counts layers, not steps.
  if (progress != nullptr && progress->num_steps > 0 && progress->phase != "loading") {
    fraction = std::max(
        fraction, static_cast<double>(progress->step) / static_cast<double>(progress->num_steps));
  }
  return std::min(fraction, 1.0);
}

TaskStatus task_status(const State& state, const TaskRecord& task) {
  TaskStatus status;
  status.id = to_string(task.id);
  status.stage = to_string(task.id.stage);
  status.block = task.id.block;
  if (task.id.block >= 0) {
    status.first_layer = state.geometry->first_layer(task.id.block);
    status.num_layers = state.geometry->layers_of(task.id.block);
  }
  status.state = state_word(state, task);
  status.worker = task.worker;
  status.token = task.token;
  status.attempts = task.attempts;
  status.failures = static_cast<int>(task.failures.size());
  status.reason = task.reason.empty() ? waits_for(state, task) : task.reason;
  status.result = task.result;
  return status;
}

}  // namespace

void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const std::map<std::uint64_t, LiveProgress>& progress,
                 double now) {
  if (!state.geometry) return;
  status.num_layers = state.geometry->num_layers;
  status.num_blocks = state.geometry->num_blocks();
  std::array<StageStatus, 5> stages;
  for (const auto& [id, task] : state.tasks) {
    TaskStatus item = task_status(state, task);
    const auto live =
        task.state == TaskState::kGranted ? progress.find(task.token) : progress.end();
    if (live != progress.end()) {
      item.progress = live->second.progress;
      item.seconds_since_progress = live->second.seconds_since_progress;
    }
    StageStatus& stage = stages[static_cast<std::size_t>(id.stage)];
    ++stage.total;
    stage.done += task.state == TaskState::kDone || task.state == TaskState::kDropped ? 1 : 0;
    stage.running += task.state == TaskState::kGranted ? 1 : 0;
    stage.quarantined += task.state == TaskState::kQuarantined ? 1 : 0;
    stage.fraction += fraction_of(state, task, item.progress ? &*item.progress : nullptr);
    status.tasks.push_back(std::move(item));
  }
  for (const Stage id : kStages) {
    StageStatus& stage = stages[static_cast<std::size_t>(id)];
    if (stage.total == 0) continue;
    stage.stage = to_string(id);
    stage.seconds = times.seconds(id, now);
    stage.fraction /= stage.total;
    if (stage.done < stage.total && stage.running > 0 && stage.fraction > kMinFractionForEta) {
      stage.eta_seconds = stage.seconds * (1.0 - stage.fraction) / stage.fraction;
    }
    status.stages.push_back(stage);
  }
}

std::filesystem::path status_file(const storage::RunLayout& layout) {
  return layout.logs() / "status.json";
}

}  // namespace hedgerow::coordinator
