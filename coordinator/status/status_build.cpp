#include "coordinator/status/status_build.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include "coordinator/state/task_graph.hpp"

namespace hedgerow::coordinator {
namespace {

// The journal's words, but for two: people ask whether a task could begin, and call a granted one
// running.
std::string state_word(const State& state, const TaskRecord& task) {
  if (task.state == TaskState::kPending) return is_ready(state, task) ? "ready" : "waiting";
  if (task.state == TaskState::kGranted) return "running";
  return std::string(to_string(task.state));
}

double fraction_by_steps(const TaskStatus& status) {
  const TaskStatus::Steps steps = status.steps();
  if (steps.all <= 0) return 0.0;
  return std::min(1.0, static_cast<double>(steps.done) / static_cast<double>(steps.all));
}

// The share of a piece's shards that are committed, 0 to 1.
double fraction_by_shards(const State& state, const TaskId& capture) {
  const auto boundary = static_cast<std::size_t>(capture.block) + 1;
  const int missing =
      state.index.boundaries[boundary].missing_of_piece[static_cast<std::size_t>(capture.piece)];
  const int count = shards_of_piece(*state.geometry, capture.piece).count;
  return static_cast<double>(count - missing) / count;
}

// Captures that are done, partial ones by their shards. Asks each boundary, not each task.
double captures_done(const State& state) {
  double done = 0.0;
  for (const BoundaryIndex& boundary : state.index.boundaries) {
    const auto captures = [&](TaskState in) {
      return boundary.captures[static_cast<std::size_t>(in)];
    };
    const int num_captures = std::accumulate(boundary.captures.begin(), boundary.captures.end(), 0);
    if (num_captures == 0) continue;
    const double by_shards = static_cast<double>(state.geometry->num_shards - boundary.missing) *
                             num_captures / state.geometry->num_shards;
    // What was dropped is missing and done all the same.
    done += captures(TaskState::kDropped) > 0
                ? captures(TaskState::kDropped) + captures(TaskState::kDone)
                : by_shards;
  }
  return done;
}

TaskStatus task_status(const State& state, const TaskRecord& task, const JobSize& size) {
  TaskStatus status;
  status.id = to_string(task.id);
  status.stage = task.id.stage;
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
  status.wasted = task.wasted;
  status.lost_steps = task.lost_steps;
  status.checkpoint_step = first_step(task);
  if (task.id.stage == Stage::kTransfer) status.num_steps = size.transfer_steps;
  if (task.id.stage == Stage::kFinetune) status.num_steps = size.finetune_steps;
  status.reason = task.reason.empty() ? waits_for(state, task) : task.reason;
  status.result = result_of(task);
  return status;
}

// Seconds that all of a stage takes; nullopt before its first shard or step. Until one of its tasks
// is done, loading would count for as much as what was done since.
std::optional<double> pace_of(const StageStatus& stage, double tasks_per_second) {
  if (stage.fraction <= 0.0 || stage.seconds <= 0.0) return std::nullopt;
  if (stage.done == 0 && tasks_per_second > 0.0) return stage.total / tasks_per_second;
  return stage.seconds / stage.fraction;
}

using Paces = std::map<Stage, double>;  // by stage

// A stage that was measured goes on at its own pace. The others take as long as the plan
// estimates, times what the measured ones took of their estimates. Nullopt while nothing was
// measured.
std::optional<double> whole_eta(const RunStatus& status, const Paces& paces) {
  double seconds = 0.0, measured_seconds = 0.0, measured_work = 0.0;
  for (const StageStatus& stage : status.stages) {
    seconds += stage.seconds;
    const auto pace = paces.find(stage.stage);
    if (pace == paces.end()) continue;
    measured_seconds += pace->second * stage.fraction;
    measured_work += stage.work * stage.fraction;
  }
  if (measured_work <= 0.0 || seconds <= 0.0) return std::nullopt;
  double left = 0.0;
  for (const StageStatus& stage : status.stages) {
    const auto pace = paces.find(stage.stage);
    const double share = 1.0 - stage.fraction;
    left += pace != paces.end() ? pace->second * share
                                : stage.work * share * measured_seconds / measured_work;
  }
  return left * status.elapsed_seconds / seconds;  // stages overlap
}

void fill_whole(RunStatus& status, const Paces& paces) {
  double work = 0.0, done = 0.0;
  bool is_running = false;
  for (const StageStatus& stage : status.stages) {
    work += stage.work;
    done += stage.work * stage.fraction;
    is_running |= stage.running > 0;
  }
  if (work <= 0.0) return;
  status.fraction = done / work;
  if (is_running && *status.fraction < 1.0) status.eta_seconds = whole_eta(status, paces);
}

// What the tasks of a stage have used at most, each where it computes.
struct Peak {
  std::uint64_t bytes = 0;
  bool on_gpu = false;

  void add(const wire::PeakMemory& peak) {
    // What a process used before it came to its GPU is no peak of the other kind.
    if (peak.device_bytes > 0 && !on_gpu) bytes = 0;
    on_gpu |= peak.device_bytes > 0;
    if (on_gpu && peak.device_bytes == 0) return;
    bytes = std::max(bytes, peak.device_bytes > 0 ? peak.device_bytes : peak.host_bytes);
  }
};

constexpr double kSecondsOfAnHour = 3600.0;

// The coordinator assembles by itself, without a GPU.
double gpu_hours_of(Stage stage, double task_seconds, const Peak& peak, const JobSize& size) {
  const bool on_gpu = peak.on_gpu || (size.plan && size.plan->on_gpus);
  if (stage == Stage::kAssemble || !on_gpu) return 0.0;
  const int gpus = stage == Stage::kFinetune ? std::max(1, size.finetune_ranks) : 1;
  return gpus * task_seconds / kSecondsOfAnHour;
}

// A stage that was measured goes on as it did, the others as planned.
double gpu_hours_left(const StageStatus& stage) {
  const double left = 1.0 - stage.fraction;
  if (stage.fraction > 0.0) return stage.gpu_hours * left / stage.fraction;
  return stage.planned ? std::max(0.0, stage.planned->gpu_hours - stage.gpu_hours) : 0.0;
}

void fill_spending(RunStatus& status, const RecordedPlan& plan) {
  const auto spending = [&plan](double seconds) {
    Spending spent;
    if (plan.price_per_hour > 0.0) spent.cost = plan.price_per_hour * seconds / kSecondsOfAnHour;
    return spent;
  };
  status.so_far = spending(status.elapsed_seconds);
  for (const StageStatus& stage : status.stages) status.so_far->gpu_hours += stage.gpu_hours;
  if (!status.eta_seconds) return;
  status.to_come = spending(*status.eta_seconds);
  for (const StageStatus& stage : status.stages) status.to_come->gpu_hours += gpu_hours_left(stage);
}

// How many tasks are where; `fraction` is the number of those done, partial captures included.
std::array<StageStatus, kNumStages> stages_of(const State& state) {
  std::array<StageStatus, kNumStages> stages;
  for (const wire::TaskKindRow& kind : wire::task_kinds()) {
    const Stage id = kind.kind;
    StageStatus& stage = stages[static_cast<std::size_t>(id)];
    stage.stage = id;
    stage.total = state.index.total(id);
    stage.done =
        state.index.count(id, TaskState::kDone) + state.index.count(id, TaskState::kDropped);
    stage.running = state.index.count(id, TaskState::kGranted);
    stage.quarantined = state.index.count(id, TaskState::kQuarantined);
    stage.fraction = id == Stage::kCapture ? captures_done(state) : stage.done;
  }
  return stages;
}

// In the order of their ids.
std::vector<const TaskRecord*> listed(const State& state) {
  std::vector<const TaskRecord*> tasks;
  if (state.tasks.size() <= kMaxListed) {
    for (const auto& [id, task] : state.tasks) tasks.push_back(&task);
    return tasks;
  }
  std::set<TaskId> captures;
  const auto list = [&](const TaskId& id) {
    if (id.stage == Stage::kCapture && captures.size() < kMaxListed) captures.insert(id);
  };
  if (state.index.count(Stage::kCapture, TaskState::kQuarantined) > 0) {
    for (const auto& [id, task] : state.tasks) {
      if (task.state == TaskState::kQuarantined) list(id);
    }
  }
  for (const TaskId& id : state.index.troubled) list(id);
  for (const auto& [token, id] : state.grants) list(id);
  for (const TaskId& id : captures) tasks.push_back(&state.task(id));
  for (auto other = state.tasks.lower_bound(TaskId::transfer(-1)); other != state.tasks.end();
       ++other)
    tasks.push_back(&other->second);
  return tasks;
}

}  // namespace

void fill_status(RunStatus& status,
                 const State& state,
                 const StageTimes& times,
                 const ProgressOf& progress,
                 double now,
                 const JobSize& size) {
  if (!state.geometry) return;
  status.num_layers = state.geometry->num_layers;
  status.num_blocks = state.geometry->num_blocks();
  std::array<StageStatus, kNumStages> stages = stages_of(state);
  std::array<double, kNumStages> tasks_per_second{};  // of those that run now
  std::array<Peak, kNumStages> peaks;
  status.tasks_left_out = static_cast<int>(state.tasks.size());
  for (const TaskRecord* task : listed(state)) {
    TaskStatus item = task_status(state, *task, size);
    if (progress && task->state == TaskState::kGranted) {
      if (const std::optional<LiveProgress> live = progress(task->token)) {
        item.progress = live->progress;
        item.seconds_since_progress = live->seconds_since_progress;
        const double steps = static_cast<double>(live->progress.num_steps);
        if (live->speed && steps > 0.0) {
          tasks_per_second[static_cast<std::size_t>(task->id.stage)] +=
              1.0 / (steps * live->speed->seconds_per_step);
        }
      }
    }
    const bool is_open = task->state != TaskState::kDone && task->state != TaskState::kDropped;
    double& done = stages[static_cast<std::size_t>(task->id.stage)].fraction;
    if (is_open && task->id.stage == Stage::kCapture) {
      done += std::max(0.0, fraction_by_steps(item) - fraction_by_shards(state, task->id));
    } else if (is_open) {
      done += fraction_by_steps(item);
    }
    peaks[static_cast<std::size_t>(task->id.stage)].add(item.peak_memory());
    status.tasks.push_back(std::move(item));
    --status.tasks_left_out;
  }
  Paces paces;
  for (const wire::TaskKindRow& kind : wire::task_kinds()) {
    const Stage id = kind.kind;
    StageStatus& stage = stages[static_cast<std::size_t>(id)];
    if (stage.total == 0) continue;
    stage.seconds = times.seconds(id, now);
    stage.fraction /= stage.total;
    const Peak& peak = peaks[static_cast<std::size_t>(id)];
    stage.gpu_hours = gpu_hours_of(id, times.task_seconds(id, now), peak, size);
    stage.memory_bytes = peak.bytes;
    stage.disk_bytes = times.disk_bytes(id);
    if (const PlannedStage* planned = size.plan ? size.plan->find(stage.stage) : nullptr)
      stage.planned = *planned;
    const auto work = size.work.find(stage.stage);
    if (work != size.work.end()) stage.work = work->second;
    if (const auto pace = pace_of(stage, tasks_per_second[static_cast<std::size_t>(id)])) {
      paces[stage.stage] = *pace;
      if (stage.done < stage.total && stage.running > 0)
        stage.eta_seconds = *pace * (1.0 - stage.fraction);
    }
    status.stages.push_back(stage);
  }
  status.elapsed_seconds = times.busy_seconds(now);
  fill_whole(status, paces);
  if (size.plan) fill_spending(status, *size.plan);
}

std::filesystem::path status_file(const storage::RunLayout& layout) {
  return layout.logs() / "status.json";
}

}  // namespace hedgerow::coordinator
