#include "coordinator/status/status.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "coordinator/host/orphaned_leases.hpp"
#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status_build.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "coordinator/wire/json_fields.hpp"
#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "storage/base/utc.hpp"
#include "storage/journal/journal.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace wire;  // the strict field readers
using storage::Error;
using storage::ErrorKind;

constexpr const char* kFormat = "status/1";
// How old a status of a coordinator on another host may be and still be shown as alive.
constexpr double kFreshSeconds = 30.0;
constexpr std::uint64_t kMaxStatusBytes = 256U << 20;  // some hundred thousand tasks

json task_json(const TaskStatus& task) {
  json out = {{"id", task.id},
              {"stage", task.stage},
              {"block", task.block},
              {"first_layer", task.first_layer},
              {"num_layers", task.num_layers},
              {"state", task.state},
              {"worker", task.worker},
              {"token", task.token},
              {"attempts", task.attempts},
              {"failures", task.failures},
              {"wasted", task.wasted},
              {"lost_steps", task.lost_steps},
              {"checkpoint_step", task.checkpoint_step},
              {"num_steps", task.num_steps},
              {"reason", task.reason},
              {"seconds_since_progress", task.seconds_since_progress},
              {"result", task.result}};
  if (task.progress) out["progress"] = *task.progress;
  return out;
}

TaskStatus task_of(const json& in) {
  TaskStatus task{.id = string_field(in, "id"),
                  .stage = stage_field(in, "stage"),
                  .block = int_field(in, "block"),
                  .first_layer = int_field(in, "first_layer"),
                  .num_layers = int_field(in, "num_layers"),
                  .state = string_field(in, "state"),
                  .worker = string_field(in, "worker"),
                  .token = uint_field(in, "token"),
                  .attempts = int_field(in, "attempts"),
                  .failures = int_field(in, "failures"),
                  .wasted = in.value("wasted", 0),
                  .lost_steps = in.value("lost_steps", std::int64_t{0}),
                  .checkpoint_step = in.value("checkpoint_step", std::int64_t{0}),
                  .num_steps = in.value("num_steps", std::int64_t{0}),
                  .reason = string_field(in, "reason"),
                  .progress = std::nullopt,
                  .seconds_since_progress = double_field(in, "seconds_since_progress"),
                  .result = field(in, "result")};
  if (in.contains("progress")) task.progress = object_field(in, "progress").get<wire::Progress>();
  return task;
}

json stage_json(const StageStatus& stage) {
  json out = {{"stage", stage.stage},
              {"total", stage.total},
              {"done", stage.done},
              {"running", stage.running},
              {"quarantined", stage.quarantined},
              {"seconds", stage.seconds},
              {"fraction", stage.fraction},
              {"work", stage.work}};
  if (stage.eta_seconds) out["eta_seconds"] = *stage.eta_seconds;
  out["gpu_hours"] = stage.gpu_hours;
  out["memory_bytes"] = stage.memory_bytes;
  out["disk_bytes"] = stage.disk_bytes;
  if (stage.planned) out["planned"] = *stage.planned;
  return out;
}

StageStatus stage_of(const json& in) {
  StageStatus stage{.stage = stage_field(in, "stage"),
                    .total = int_field(in, "total"),
                    .done = int_field(in, "done"),
                    .running = int_field(in, "running"),
                    .quarantined = int_field(in, "quarantined"),
                    .seconds = double_field(in, "seconds"),
                    .fraction = double_field(in, "fraction"),
                    .work = in.value("work", 0.0),
                    .eta_seconds = std::nullopt,
                    .gpu_hours = in.value("gpu_hours", 0.0),
                    .memory_bytes = in.value("memory_bytes", std::uint64_t{0}),
                    .disk_bytes = in.value("disk_bytes", std::uint64_t{0}),
                    .planned = std::nullopt};
  if (in.contains("eta_seconds")) stage.eta_seconds = double_field(in, "eta_seconds");
  if (in.contains("planned")) stage.planned = object_field(in, "planned").get<PlannedStage>();
  return stage;
}

json spending_json(const Spending& spending) {
  json out = {{"gpu_hours", spending.gpu_hours}};
  if (spending.cost) out["cost"] = *spending.cost;
  return out;
}

std::optional<Spending> spending_of(const json& in, const char* key) {
  if (!in.contains(key)) return std::nullopt;
  const json& object = object_field(in, key);
  Spending spending{.gpu_hours = double_field(object, "gpu_hours"), .cost = std::nullopt};
  if (object.contains("cost")) spending.cost = double_field(object, "cost");
  return spending;
}

json worker_json(const WorkerStatus& worker) {
  json out = {{"uuid", worker.uuid},
              {"host", worker.host},
              {"device", worker.device},
              {"phase", worker.phase},
              {"task", worker.task},
              {"incarnation", worker.incarnation},
              {"pid", worker.pid},
              {"seconds_since_heartbeat", worker.seconds_since_heartbeat}};
  if (worker.speed) {
    out["seconds_per_step"] = worker.speed->seconds_per_step;
    out["tokens_per_second"] = worker.speed->tokens_per_second;
  }
  return out;
}

WorkerStatus worker_of(const json& in) {
  WorkerStatus worker{.uuid = string_field(in, "uuid"),
                      .host = string_field(in, "host"),
                      .device = string_field(in, "device"),
                      .phase = string_field(in, "phase"),
                      .task = string_field(in, "task"),
                      .incarnation = uint_field(in, "incarnation"),
                      .pid = int_field(in, "pid"),
                      .seconds_since_heartbeat = double_field(in, "seconds_since_heartbeat")};
  if (in.contains("seconds_per_step"))
    worker.speed = {double_field(in, "seconds_per_step"), double_field(in, "tokens_per_second")};
  return worker;
}

bool coordinator_lives(const std::optional<wire::CoordinatorFile>& file,
                       const std::optional<RunStatus>& published) {
  if (!file || !published || published->term != file->term) return false;
  if (file->host == wire::this_host()) return wire::is_alive(file->process);
  return storage::wall_seconds() - storage::seconds_of_utc(published->updated_at) < kFreshSeconds;
}

// Its tasks are shown as running, and some may run, although nobody coordinates them.
void warn_of_death(const wire::CoordinatorFile& file, const State& state, RunStatus& status) {
  const bool is_here = file.host == wire::this_host();
  if (is_here && wire::is_alive(file.process)) return;  // it begins, and has published nothing yet
  const std::size_t count = wire::orphans_of(file).size();
  if (count == 0 && state.grants.empty()) return;
  std::string text = "its coordinator (pid " + std::to_string(file.process.pid) + " on " +
                     file.host + (is_here ? ") is gone" : ") has not been heard of for a while");
  if (count == 0) {
    text += ": 'hedgerow run --run " + status.run + "' goes on";
  } else {
    text += ", and " + std::to_string(count) + " of its processes there " +
            (count == 1 ? "goes" : "go") + " on without it: 'hedgerow run --run " + status.run +
            "' takes them over, 'hedgerow stop --run " + status.run + "' ends them";
  }
  status.warnings.push_back(std::move(text));
}

// As the next coordinator will find it: what a dead process held waits again.
void revoke_of_dead(const wire::CoordinatorFile& file, State& state) {
  if (file.host != wire::this_host() || wire::is_alive(file.process)) return;
  for (const std::uint64_t token : held_by_dead(state, file.children, host_processes()))
    static_cast<void>(apply(state, LeaseRevoked{token, kDiedAlone}));
}

// A worker that starts now would read it; the living coordinator has its own copy. The journal is
// read only if something is wrong.
void warn_of_recipe(const storage::RunLayout& layout, RunStatus& status) {
  try {
    std::ignore = recipe_of_run(layout);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kCorrupt) status.warnings.emplace_back(error.what());
  }
}

// When a run ends that nobody coordinates, nobody can say.
void drop_etas(RunStatus& status) {
  status.eta_seconds.reset();
  status.to_come.reset();
  for (StageStatus& stage : status.stages) stage.eta_seconds.reset();
}

// What the recipe says of the work, and what the coordinator that planned it left behind.
JobSize size_of(const storage::RunLayout& layout, const std::optional<RunStatus>& published) {
  JobSize size;
  try {
    const storage::Recipe recipe = storage::Recipe::load_of_run(layout.recipe());
    size.transfer_steps = recipe.transfer.max_steps;
    size.finetune_steps = recipe.finetune.max_steps;
    size.finetune_ranks = recipe.finetune.ranks;
  } catch (const Error&) {
    // `run` says what is wrong with it; the state needs no recipe.
  }
  if (!published) return size;
  for (const StageStatus& stage : published->stages) size.work[stage.stage] = stage.work;
  return size;
}

std::string word_for(const State& state) {
  switch (phase_of(state)) {
    case RunPhase::kNew:
      return "new";
    case RunPhase::kRunning:
      return "stopped";  // there is work, but nobody coordinates it
    case RunPhase::kDone:
      return "done";
    case RunPhase::kPartial:
      return "partial";
  }
  return "stopped";
}

}  // namespace

std::optional<RunStatus> published_status(const storage::RunLayout& layout) {
  if (!std::filesystem::exists(status_file(layout))) return std::nullopt;
  try {
    return parse_document(storage::read_text(status_file(layout), kMaxStatusBytes))
        .get<RunStatus>();
  } catch (const Error&) {
    return std::nullopt;  // half a disk's worth of bad luck: the journal tells the rest
  }
}

TaskStatus::Steps TaskStatus::steps() const {
  // While it loads, a task counts layers, not steps.
  if (!progress || progress->phase == "loading" || progress->num_steps == 0)
    return {checkpoint_step, num_steps};
  return {std::max(checkpoint_step, progress->step), progress->num_steps};
}

wire::PeakMemory TaskStatus::peak_memory() const {
  if (progress) return progress->peak_memory;
  const auto found = result.is_object() ? result.find("peak_memory") : result.end();
  // A result is the worker's own: whatever else stands there is shown as nothing.
  try {
    return found == result.end() ? wire::PeakMemory{} : found->get<wire::PeakMemory>();
  } catch (const std::exception&) {
    return {};
  }
}

int TaskStatus::tries() const { return std::min(attempts, wasted + 1); }

const TaskStatus* RunStatus::task(const std::string& id) const {
  const auto found = std::find_if(
      tasks.begin(), tasks.end(), [&id](const TaskStatus& item) { return item.id == id; });
  return found == tasks.end() ? nullptr : &*found;
}

void to_json(json& out, const RunStatus& status) {
  out = {{"format", kFormat},
         {"run", status.run},
         {"state", status.state},
         {"stopping", status.is_stopping},
         {"has_room", status.has_room},
         {"term", status.term},
         {"host", status.host},
         {"endpoint", status.endpoint},
         {"pid", status.pid},
         {"updated_at", status.updated_at},
         {"num_layers", status.num_layers},
         {"num_blocks", status.num_blocks},
         {"elapsed_seconds", status.elapsed_seconds},
         {"warnings", status.warnings},
         {"stages", json::array()},
         {"tasks", json::array()},
         {"workers", json::array()}};
  if (!status.web.empty()) out["web"] = status.web;
  if (status.tasks_left_out > 0) out["tasks_left_out"] = status.tasks_left_out;
  if (status.workers_left_out > 0) out["workers_left_out"] = status.workers_left_out;
  if (status.fraction) out["fraction"] = *status.fraction;
  if (status.eta_seconds) out["eta_seconds"] = *status.eta_seconds;
  if (status.so_far) out["so_far"] = spending_json(*status.so_far);
  if (status.to_come) out["to_come"] = spending_json(*status.to_come);
  for (const StageStatus& stage : status.stages) out["stages"].push_back(stage_json(stage));
  for (const TaskStatus& task : status.tasks) out["tasks"].push_back(task_json(task));
  for (const WorkerStatus& worker : status.workers) out["workers"].push_back(worker_json(worker));
}

void from_json(const json& in, RunStatus& status) {
  if (string_field(in, "format") != kFormat)
    throw Error(ErrorKind::kCorrupt, "status: format is not status/1");
  status = RunStatus{.run = string_field(in, "run"),
                     .state = string_field(in, "state"),
                     .is_stopping = in.value("stopping", false),
                     .has_room = in.value("has_room", true),
                     .term = uint_field(in, "term"),
                     .host = string_field(in, "host"),
                     .endpoint = string_field(in, "endpoint"),
                     .web = in.value("web", ""),
                     .pid = int_field(in, "pid"),
                     .updated_at = string_field(in, "updated_at"),
                     .num_layers = int_field(in, "num_layers"),
                     .num_blocks = int_field(in, "num_blocks"),
                     .fraction = std::nullopt,
                     .elapsed_seconds = in.value("elapsed_seconds", 0.0),
                     .eta_seconds = std::nullopt,
                     .so_far = spending_of(in, "so_far"),
                     .to_come = spending_of(in, "to_come"),
                     .stages = {},
                     .tasks = {},
                     .workers = {},
                     .tasks_left_out = in.value("tasks_left_out", 0),
                     .workers_left_out = in.value("workers_left_out", 0),
                     .warnings = strings_field(in, "warnings")};
  if (in.contains("fraction")) status.fraction = double_field(in, "fraction");
  if (in.contains("eta_seconds")) status.eta_seconds = double_field(in, "eta_seconds");
  for (const json& stage : field(in, "stages")) status.stages.push_back(stage_of(stage));
  for (const json& task : field(in, "tasks")) status.tasks.push_back(task_of(task));
  for (const json& worker : field(in, "workers")) status.workers.push_back(worker_of(worker));
}

void require_run(const storage::RunLayout& layout) {
  // Without run.toml the journal still has the recipe.
  if (std::filesystem::exists(layout.recipe()) ||
      std::filesystem::exists(layout.journal_directory()))
    return;
  throw Error(
      ErrorKind::kUsage,
      layout.root().string() + " is no run directory (it has no run.toml); name one with --run");
}

std::optional<std::string> journal_problem(const storage::RunLayout& layout) {
  if (std::filesystem::exists(layout.journal_directory()) ||
      !std::filesystem::exists(layout.root() / "attempts"))
    return std::nullopt;
  return layout.root().string() +
         " has attempts/, but no journal/, which says what came of them: put journal/ back, or "
         "begin "
         "a new run in another directory";
}

std::string quarantine_text(const RunStatus& status) {
  std::map<std::string, std::vector<std::string>> tasks;  // by reason
  for (const TaskStatus& task : status.tasks) {
    if (task.state == "quarantined") tasks[task.reason].push_back(task.id);
  }
  std::string text;
  for (const auto& [reason, ids] : tasks) {
    text += (text.empty() ? "" : "; ") + ids.front();
    if (ids.size() > 1) text += " and " + std::to_string(ids.size() - 1) + " more are";
    text += (ids.size() > 1 ? " quarantined: " : " is quarantined: ") + reason;
  }
  return text;
}

RunStatus read_status(const storage::RunLayout& layout) {
  require_run(layout);
  const std::optional<RunStatus> published = published_status(layout);
  if (coordinator_lives(wire::read_coordinator_file(layout), published)) {
    RunStatus status = *published;
    warn_of_recipe(layout, status);
    return status;
  }
  RunStatus status;
  status.run = layout.root().string();
  const std::optional<wire::CoordinatorFile> tokenize_stage = running_tokenize_stage(layout);
  if (tokenize_stage) {
    status.host = tokenize_stage->host;
    status.pid = tokenize_stage->process.pid;
  }
  if (!std::filesystem::exists(layout.journal_directory())) {
    status.state = tokenize_stage ? "preparing" : "new";
    if (auto problem = journal_problem(layout)) status.warnings.push_back(*std::move(problem));
    return status;
  }
  FoldedRun folded = fold(storage::replay_journal(layout));
  std::map<std::uint64_t, LiveProgress>
      last_progress;  // of attempts that the last coordinator left behind
  if (published) {
    for (const TaskStatus& task : published->tasks) {
      if (task.progress) last_progress[task.token] = {*task.progress, task.seconds_since_progress};
    }
  }
  status.state = word_for(folded.state);
  // Whoever calls `run` again prepares nothing where all is done.
  if (tokenize_stage && status.state != "done") status.state = "preparing";
  status.term = folded.term;
  status.updated_at = published ? published->updated_at : "";
  status.warnings = folded.warnings;
  if (auto problem = recipe_problem(layout, folded.state))
    status.warnings.push_back(*std::move(problem));
  if (const auto file = wire::read_coordinator_file(layout)) {
    if (!tokenize_stage) warn_of_death(*file, folded.state, status);
    revoke_of_dead(*file, folded.state);
  }
  JobSize size = size_of(layout, published);
  std::string damaged_plan;
  size.plan = read_plan(layout, damaged_plan);
  if (!damaged_plan.empty()) status.warnings.push_back(damaged_plan);
  fill_status(
      status,
      folded.state,
      folded.times,
      [&](std::uint64_t token) -> std::optional<LiveProgress> {
        const auto found = last_progress.find(token);
        if (found == last_progress.end()) return std::nullopt;
        return found->second;
      },
      folded.last_at,
      size);
  drop_etas(status);
  return status;
}

Opening find_opening(const storage::RunLayout& layout) {
  const std::optional<RunStatus> published = published_status(layout);
  if (!published) return {};
  if (!coordinator_lives(wire::read_coordinator_file(layout), published)) {
    const bool is_over = published->state == "done" || published->state == "partial";
    return {is_over ? Opening::Kind::kOver : Opening::Kind::kNobody, ""};
  }
  return {published->has_room ? Opening::Kind::kWelcome : Opening::Kind::kBusy,
          published->endpoint};
}

std::vector<ExplainedEvent> explain(const storage::RunLayout& layout, int block) {
  if (!std::filesystem::exists(layout.journal_directory())) return {};
  std::vector<ExplainedEvent> events;
  State state;
  for (const storage::JournalRecord& record : storage::replay_history(layout).records) {
    try {
      const Event event = event_from_json(record.event);
      const std::string subject = subject_of(event, state);
      static_cast<void>(apply(state, event));
      bool concerns = block < 0;
      if (!concerns && !subject.empty() && subject.rfind("boundary", 0) != 0) {
        const TaskId id = task_id_from_string(subject);
        // A block's own tasks, and the capture that writes the boundary it reads.
        concerns = id.block == block || (id.stage == Stage::kCapture && id.block == block - 1);
      }
      if (const auto* dropped = std::get_if<BoundaryDropped>(&event))
        concerns |= dropped->boundary == block;
      if (concerns) {
        events.push_back({record.term,
                          record.seq,
                          record.at,
                          subject.empty() ? "run" : subject,
                          describe(event),
                          std::string(type_of(event))});
      }
    } catch (const Error&) {
      continue;  // read_status() reports damaged records
    }
  }
  return events;
}

}  // namespace hedgerow::coordinator
