#include "coordinator/status/status.hpp"

#include <algorithm>
#include <filesystem>
#include <map>

#include "coordinator/host/orphaned_leases.hpp"
#include "coordinator/host/tokenize_stage.hpp"
#include "coordinator/status/recorded_recipe.hpp"
#include "coordinator/status/status_build.hpp"
#include "coordinator/status/task_scores.hpp"
#include "coordinator/status/variants.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal.hpp"
#include "storage/json/fields.hpp"
#include "storage/recipe/recipe.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace storage;  // the strict field readers
using storage::Error;
using storage::ErrorKind;

constexpr const char* kFormat = "status/1";
// How old a status of a coordinator on another host may be and still be shown as alive.
constexpr double kFreshSeconds = 30.0;
constexpr std::uint64_t kMaxStatusBytes = 256U << 20;  // some hundred thousand tasks

bool coordinator_lives(const std::optional<wire::CoordinatorFile>& file,
                       const std::optional<RunStatus>& published) {
  if (!file || !published || published->term != file->term) return false;
  if (file->host == wire::this_host()) return wire::is_alive(file->process);
  return storage::wall_seconds() - storage::seconds_of_utc(published->updated_at) < kFreshSeconds;
}

// Its tasks are shown as running, and some may run, although no coordinator lives.
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

// When a run without a coordinator ends is not known.
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
      return "stopped";  // there is work, but no coordinator
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

// Optional fields are those that coordinators of earlier builds did not write.
template <typename Visitor, storage::Is<TaskStatus> T>
void visit_fields(Visitor& visitor, T& task) {
  visitor.field("id", task.id);
  visitor.field("stage", task.stage);
  visitor.field("block", task.block);
  visitor.field("first_layer", task.first_layer);
  visitor.field("num_layers", task.num_layers);
  visitor.field("state", task.state);
  visitor.field("worker", task.worker);
  visitor.field("token", task.token);
  visitor.field("attempts", task.attempts);
  visitor.field("failures", task.failures);
  visitor.optional_field("wasted", task.wasted);
  visitor.optional_field("lost_steps", task.lost_steps);
  visitor.optional_field("checkpoint_step", task.checkpoint_step);
  visitor.optional_field("num_steps", task.num_steps);
  visitor.field("reason", task.reason);
  visitor.field("progress", task.progress);
  visitor.field("seconds_since_progress", task.seconds_since_progress);
  visitor.field("result", task.result);
}
template <typename Visitor, storage::Is<StageStatus> T>
void visit_fields(Visitor& visitor, T& stage) {
  visitor.field("stage", stage.stage);
  visitor.field("total", stage.total);
  visitor.field("done", stage.done);
  visitor.field("running", stage.running);
  visitor.field("quarantined", stage.quarantined);
  visitor.field("seconds", stage.seconds);
  visitor.field("fraction", stage.fraction);
  visitor.optional_field("work", stage.work);
  visitor.field("eta_seconds", stage.eta_seconds);
  visitor.optional_field("gpu_hours", stage.gpu_hours);
  visitor.optional_field("memory_bytes", stage.memory_bytes);
  visitor.optional_field("disk_bytes", stage.disk_bytes);
  visitor.field("planned", stage.planned);
}
template <typename Visitor, storage::Is<Spending> T>
void visit_fields(Visitor& visitor, T& spending) {
  visitor.field("gpu_hours", spending.gpu_hours);
  visitor.field("cost", spending.cost);
}
template <typename Visitor, storage::Is<Speed> T>
void visit_fields(Visitor& visitor, T& speed) {
  visitor.field("seconds_per_step", speed.seconds_per_step);
  visitor.field("tokens_per_second", speed.tokens_per_second);
}
template <typename Visitor, storage::Is<WorkerStatus> T>
void visit_fields(Visitor& visitor, T& worker) {
  visitor.field("uuid", worker.uuid);
  visitor.field("host", worker.host);
  visitor.field("device", worker.device);
  visitor.field("phase", worker.phase);
  visitor.field("task", worker.task);
  visitor.field("incarnation", worker.incarnation);
  visitor.field("pid", worker.pid);
  visitor.field("seconds_since_heartbeat", worker.seconds_since_heartbeat);
  visitor.fields_of("seconds_per_step", worker.speed);
}
template <typename Visitor, storage::Is<RunStatus> T>
void visit_fields(Visitor& visitor, T& status) {
  visitor.field("run", status.run);
  visitor.field("state", status.state);
  visitor.optional_field("stopping", status.is_stopping);
  visitor.optional_field("has_room", status.has_room);
  visitor.field("term", status.term);
  visitor.field("host", status.host);
  visitor.field("endpoint", status.endpoint);
  visitor.sparse_field("web", status.web);
  visitor.field("pid", status.pid);
  visitor.field("updated_at", status.updated_at);
  visitor.field("num_layers", status.num_layers);
  visitor.field("num_blocks", status.num_blocks);
  visitor.field("fraction", status.fraction);
  visitor.optional_field("elapsed_seconds", status.elapsed_seconds);
  visitor.field("eta_seconds", status.eta_seconds);
  visitor.field("so_far", status.so_far);
  visitor.field("to_come", status.to_come);
  visitor.field("stages", status.stages);
  visitor.field("tasks", status.tasks);
  visitor.field("workers", status.workers);
  visitor.sparse_field("tasks_left_out", status.tasks_left_out);
  visitor.sparse_field("workers_left_out", status.workers_left_out);
  visitor.field("warnings", status.warnings);
  visitor.optional_field("task_scores", status.task_scores);
}

void to_json(json& out, const RunStatus& status) {
  out = fields_to_json(status);
  out["format"] = kFormat;
  // For those who have the status alone: the page and the report.
  if (const auto variants = variants_of(status); !variants.empty())
    out["variants"] = to_json(variants);
}

void from_json(const json& in, RunStatus& status) {
  if (string_field(in, "format") != kFormat)
    throw Error(ErrorKind::kCorrupt, "status: format is not status/1");
  status = fields_from_json<RunStatus>(in);
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

namespace {

void add_task_scores(const storage::RunLayout& layout, RunStatus& status) {
  try {
    status.task_scores = read_task_scores(layout);
  } catch (const Error& error) {
    status.warnings.emplace_back(error.what());
  }
}

}  // namespace

RunStatus read_status(const storage::RunLayout& layout) {
  require_run(layout);
  const std::optional<RunStatus> published = published_status(layout);
  if (coordinator_lives(wire::read_coordinator_file(layout), published)) {
    RunStatus status = *published;
    warn_of_recipe(layout, status);
    add_task_scores(layout, status);
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
  // A `run` of a finished run prepares nothing.
  if (tokenize_stage && status.state != "done") status.state = "preparing";
  status.term = folded.term;
  status.updated_at = published ? published->updated_at : "";
  status.warnings = folded.warnings;
  add_task_scores(layout, status);
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
