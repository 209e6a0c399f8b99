#include "coordinator/state/fold.hpp"

#include <algorithm>

#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {
namespace {

struct Describer {
  std::string operator()(const TermStarted&) const { return "a coordinator took over"; }
  std::string operator()(const RunStarted& e) const { return "started by build " + e.build; }
  std::string operator()(const Granted& e) const {
    return "granted to " + e.worker + " under fencing token " + std::to_string(e.token);
  }
  std::string operator()(const ShardCommitted& e) const { return "committed " + e.file.name; }
  std::string operator()(const CheckpointCommitted& e) const {
    return "checkpoint at step " + std::to_string(e.step);
  }
  std::string operator()(const TaskDone& e) const {
    return e.files.empty() ? "done" : "done, committed " + e.files.front().name;
  }
  std::string operator()(const TaskFailed& e) const {
    return "failed (" + std::string(storage::to_string(e.kind)) + "): " + e.message +
           loss_text(e.lost);
  }
  std::string operator()(const TaskReleased& e) const {
    return "released: " + e.reason + loss_text(e.lost);
  }
  std::string operator()(const LeaseRevoked& e) const {
    return "lease revoked: " + e.reason + loss_text(e.lost);
  }
  std::string operator()(const FileLost& e) const { return "lost " + e.name + ": " + e.reason; }
  std::string operator()(const BoundaryDropped& e) const {
    return "deleted boundary " + std::to_string(e.boundary) + ", as plan.keep_boundaries says";
  }
  std::string operator()(const LogitsDropped&) const {
    return "deleted the teacher's logits, as plan.keep_boundaries says";
  }
  std::string operator()(const Recaptured& e) const { return "to be captured again: " + e.reason; }
  std::string operator()(const Quarantined& e) const { return "quarantined: " + e.reason; }
  std::string operator()(const Retried& e) const {
    return "to be tried again: " + e.reason +
           (e.seed ? ", with seed " + std::to_string(*e.seed) : "");
  }
  std::string operator()(const Noted& e) const { return e.text; }
  std::string operator()(const RecipeRecorded& e) const {
    if (e.changes.empty()) return "recorded the recipe";
    std::string text = "recipe changed: ";
    for (const std::string& change : e.changes)
      text += (&change == &e.changes.front() ? "" : "; ") + change;
    return text;
  }
};

std::string task_of_token(const State& state, std::uint64_t token) {
  const TaskRecord* task = state.holder(token);
  return task == nullptr ? "" : to_string(task->id);
}

std::string task_of_file(const State& state, const std::string& name) {
  for (std::size_t boundary = 1; boundary < state.shards.size(); ++boundary) {
    for (std::size_t shard = 0; shard < state.shards[boundary].size(); ++shard) {
      if (state.shards[boundary][shard].file.name != name) continue;
      const int piece = static_cast<int>(shard) / state.geometry->shards_per_capture;
      return to_string(TaskId::capture(static_cast<int>(boundary) - 1, piece));
    }
  }
  for (const auto& [id, task] : state.tasks) {
    const auto named = [&name](const storage::FileRecord& file) { return file.name == name; };
    if (std::any_of(task.files.begin(), task.files.end(), named) ||
        (task.checkpoint && named(task.checkpoint->file))) {
      return to_string(id);
    }
  }
  return "";
}

}  // namespace

void StageTimes::Interval::observe(double at, int now_running, std::uint64_t stored_bytes) {
  // What the last task commits is there when nothing runs any more.
  if (running > 0 || now_running > 0) disk_bytes = std::max(disk_bytes, stored_bytes);
  if (now_running == running) return;
  if (running > 0) total += passed(at);
  task_total += running * passed(at);
  since = at;
  running = now_running;
}

double StageTimes::Interval::passed(double now) const { return std::max(0.0, now - since); }

void StageTimes::observe(double at, const State& state) {
  for (std::size_t stage = 0; stage < stages_.size(); ++stage)
    stages_[stage].observe(at,
                           state.index.count(static_cast<Stage>(stage), TaskState::kGranted),
                           state.index.stored_bytes);
  any_.observe(at, static_cast<int>(state.grants.size()), state.index.stored_bytes);
}

void StageTimes::close(double at) {
  for (Interval& interval : stages_) interval.observe(at, 0, 0);
  any_.observe(at, 0, 0);
}

double StageTimes::seconds(Stage stage, double now) const {
  const Interval& interval = stages_[static_cast<std::size_t>(stage)];
  return interval.total + (interval.running > 0 ? interval.passed(now) : 0.0);
}

double StageTimes::task_seconds(Stage stage, double now) const {
  const Interval& interval = stages_[static_cast<std::size_t>(stage)];
  return interval.task_total + interval.running * interval.passed(now);
}

std::uint64_t StageTimes::disk_bytes(Stage stage) const {
  return stages_[static_cast<std::size_t>(stage)].disk_bytes;
}

double StageTimes::busy_seconds(double now) const {
  return any_.total + (any_.running > 0 ? any_.passed(now) : 0.0);
}

void add_warning(std::vector<std::string>& warnings, const std::string& warning) {
  warnings.push_back(warning);
  if (warnings.size() <= kMaxWarnings) return;
  warnings.erase(warnings.begin() + 1);
  warnings.front() =
      "there were more warnings before these: 'hedgerow check' names damage, 'hedgerow explain "
      "--all' what was noted";
}

storage::ReplayResult replay_if_any(const storage::RunLayout& layout, const storage::Disk& disk) {
  if (!disk.exists(layout.journal_directory())) return {};
  return storage::replay_journal(layout, disk);
}

FoldedRun fold(const storage::ReplayResult& replayed) {
  FoldedRun folded;
  folded.term = replayed.last_term;
  for (const storage::JournalDamage& damage : replayed.damage) {
    // A torn tail is a crash while writing: nothing that was replied to is in it.
    if (damage.is_torn_tail || damage.is_settled) continue;
    add_warning(folded.warnings,
                "journal of term " + std::to_string(damage.term) + ", line " +
                    std::to_string(damage.line) + ": " + damage.reason);
  }
  // Its hash fitted, so what cannot be read is of another build. Without it the state would be
  // empty, and everything that the run has done would be done again.
  if (replayed.snapshot) folded.state = state_from_json(*replayed.snapshot);
  std::string unapplied;  // the first of them; the others follow from what it, or damage, left out
  std::size_t num_unapplied = 0;
  const auto leave_out = [&](const storage::JournalRecord& record, const std::string& why) {
    if (num_unapplied++ == 0)
      unapplied = "journal record " + std::to_string(record.seq) + " is left out: " + why;
  };
  for (const storage::JournalRecord& record : replayed.records) {
    const double at = storage::seconds_of_utc(record.at);
    try {
      const Event event = event_from_json(record.event);
      if (std::holds_alternative<TermStarted>(event)) folded.times.close(folded.last_at);
      if (const auto* note = std::get_if<Noted>(&event)) add_warning(folded.warnings, note->text);
      if (const std::optional<Rejection> rejection = apply(folded.state, event))
        leave_out(record, rejection->reason);
    } catch (const storage::Error& error) {
      leave_out(record, error.what());
    }
    folded.times.observe(at, folded.state);
    folded.last_at = at;
  }
  if (num_unapplied > 1)
    unapplied += "; so are " + std::to_string(num_unapplied - 1) + " of those behind it";
  if (num_unapplied > 0)
    add_warning(folded.warnings, unapplied + "; 'hedgerow run' does again what they recorded");
  return folded;
}

std::string describe(const Event& event) { return std::visit(Describer{}, event); }

std::string subject_of(const Event& event, const State& state) {
  return std::visit(
      [&state](const auto& e) -> std::string {
        if constexpr (requires { e.task; }) {
          return to_string(e.task);
        } else if constexpr (requires { e.token; }) {
          return task_of_token(state, e.token);
        } else if constexpr (requires { e.name; }) {
          return task_of_file(state, e.name);
        } else if constexpr (requires { e.boundary; }) {
          return "boundary " + std::to_string(e.boundary);
        } else {
          return "";
        }
      },
      event);
}

}  // namespace hedgerow::coordinator
