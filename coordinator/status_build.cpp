#include "coordinator/status_build.hpp"

#include <algorithm>
#include <array>

namespace hedgerow::coordinator {
namespace {

constexpr std::array<Stage, 5> kStages = {
    Stage::kCapture, Stage::kTransfer, Stage::kAssemble, Stage::kFinetune, Stage::kEvaluate};
// Below this share of its work a stage has no estimate yet.
constexpr double kMinFractionForEta = 0.02;

// The journal's words, but for two: people ask whether a task could begin, and call a granted one
// running.
std::string state_word(const State& state, const TaskRecord& task) {
  if (task.state == TaskState::kPending) return is_ready(state, task) ? "ready" : "waiting";
  if (task.state == TaskState::kGranted) return "running";
  return std::string(to_string(task.state));
}

// How much of a task is done, 0 to 1: shards for a capture, steps for the rest.
double fraction_of(const State& state, const TaskRecord& task, const TaskStatus& status) {
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
  const TaskStatus::Steps steps = status.steps();
  if (steps.all > 0)
    fraction = std::max(fraction, static_cast<double>(steps.done) / static_cast<double>(steps.all));
  return std::min(fraction, 1.0);
}

TaskStatus task_status(const State& state, const TaskRecord& task, const JobSize& size) {
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
  status.checkpoint_step = task.checkpoint ? task.checkpoint_step : 0;
  if (task.id.stage == Stage::kTransfer) status.num_steps = size.transfer_steps;
  if (task.id.stage == Stage::kFinetune) status.num_steps = size.finetune_steps;
  status.reason = task.reason.empty() ? waits_for(state, task) : task.reason;
  status.result = task.result;
  return status;
}

// The stages take about as long as they have operations (measured on SmolLM2: 0.31 to 0.32 of 10^12
// a second in capture, transfer and LoRA alike), so what was done so far tells how long the rest
// is.
void fill_whole(RunStatus& status, double busy_seconds) {
  double work = 0.0, done = 0.0;
  bool is_running = false;
  for (const StageStatus& stage : status.stages) {
    work += stage.work;
    done += stage.work * stage.fraction;
    is_running |= stage.running > 0;
  }
  if (work <= 0.0) return;
  status.fraction = done / work;
  if (is_running && *status.fraction > kMinFractionForEta && *status.fraction < 1.0)
    status.eta_seconds = busy_seconds * (1.0 - *status.fraction) / *status.fraction;
}

}  // namespace

void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const std::map<std::uint64_t, LiveProgress>& progress,
                 double now,
                 const JobSize& size) {
  if (!state.geometry) return;
  status.num_layers = state.geometry->num_layers;
  status.num_blocks = state.geometry->num_blocks();
  std::array<StageStatus, 5> stages;
  for (const auto& [id, task] : state.tasks) {
    TaskStatus item = task_status(state, task, size);
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
    stage.fraction += fraction_of(state, task, item);
    status.tasks.push_back(std::move(item));
  }
  for (const Stage id : kStages) {
    StageStatus& stage = stages[static_cast<std::size_t>(id)];
    if (stage.total == 0) continue;
    stage.stage = to_string(id);
    stage.seconds = times.seconds(id, now);
    stage.fraction /= stage.total;
    const auto work = size.work.find(stage.stage);
    if (work != size.work.end()) stage.work = work->second;
    if (stage.done < stage.total && stage.running > 0 && stage.fraction > kMinFractionForEta) {
      stage.eta_seconds = stage.seconds * (1.0 - stage.fraction) / stage.fraction;
    }
    status.stages.push_back(stage);
  }
  fill_whole(status, times.busy_seconds(now));
}

std::filesystem::path status_file(const storage::RunLayout& layout) {
  return layout.logs() / "status.json";
}

}  // namespace hedgerow::coordinator
