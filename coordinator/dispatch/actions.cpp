#include "coordinator/dispatch/actions.hpp"

#include <algorithm>
#include <set>

#include "coordinator/dispatch/scheduler.hpp"

namespace hedgerow::coordinator {
namespace {

void add_recaptures(const State& state, int boundary, std::vector<Intent>& intents) {
  for (int piece = 0; piece < state.geometry->num_pieces(); ++piece) {
    const TaskRecord& capture = state.task(TaskId::capture(boundary - 1, piece));
    if (capture.state != TaskState::kDropped || !piece_needed(state, boundary, piece)) continue;
    intents.push_back({.kind = IntentKind::kRecapture,
                       .task = capture.id,
                       .reason = "a later step needs it again"});
  }
}

bool any_piece_needed(const State& state, int boundary) {
  if (!boundary_may_be_needed(state, boundary)) return false;
  for (int piece = 0; piece < state.geometry->num_pieces(); ++piece) {
    if (piece_needed(state, boundary, piece)) return true;
  }
  return false;
}

void add_boundary_intents(const State& state,
                          const KeepBoundaries& keep,
                          std::vector<Intent>& intents) {
  for (int boundary = 1; boundary < static_cast<int>(state.shards.size()); ++boundary) {
    const auto& captures = state.index.boundaries[static_cast<std::size_t>(boundary)].captures;
    const auto count = [&captures](TaskState of) { return captures[static_cast<std::size_t>(of)]; };
    if (count(TaskState::kDropped) > 0 && boundary_may_be_needed(state, boundary))
      add_recaptures(state, boundary, intents);
    const bool settled =
        count(TaskState::kDone) + count(TaskState::kDropped) == state.geometry->num_pieces();
    if (settled && count(TaskState::kDone) > 0 &&
        !keep.keeps(boundary, state.geometry->num_blocks()) && !any_piece_needed(state, boundary)) {
      intents.push_back(
          {.kind = IntentKind::kDropBoundary, .task = {}, .boundary = boundary, .reason = {}});
    }
  }
}

// The logits are the only kind so far whose files are dropped by kind.
void add_intents_by_kind(const State& state,
                         const KeepBoundaries& keep,
                         std::vector<Intent>& intents) {
  for (const wire::TaskKindRow& row : wire::task_kinds()) {
    if (!row.read_by) continue;
    const auto count = [&](TaskState of) { return state.index.count(row.kind, of); };
    if (is_needed_again(state, row.kind)) {
      const std::string reason = std::string(to_string(*row.read_by)) + " needs them again";
      for (const auto& [id, task] : state.tasks) {
        if (id.stage == row.kind && task.state == TaskState::kDropped)
          intents.push_back({.kind = IntentKind::kRecapture, .task = id, .reason = reason});
      }
    }
    const bool was_read = state.index.count(*row.read_by, TaskState::kDone) > 0;
    const int settled = count(TaskState::kDone) + count(TaskState::kDropped);
    if (was_read && !keep.keeps_logits() && count(TaskState::kDone) > 0 &&
        settled == state.index.total(row.kind))
      intents.push_back({.kind = IntentKind::kDropLogits, .task = {}, .reason = {}});
  }
}

// A transfer that its workers gave up themselves (a loss that is not finite) three times fails for
// its seed, not for where it ran. Seeds count up from the recipe's.
bool may_reseed(const Geometry& geometry, const TaskRecord& task, int retries_with_new_seed) {
  return task.id.stage == Stage::kTransfer && task.failures.size() >= kMaxFailures &&
         task.failures.back().kind == storage::ErrorKind::kInternal &&
         task.seed - geometry.seed < static_cast<std::uint64_t>(std::max(0, retries_with_new_seed));
}

}  // namespace

std::vector<Intent> actions_for(const State& state,
                                const KeepBoundaries& keep,
                                int retries_with_new_seed) {
  std::vector<Intent> intents;
  if (!state.geometry) return intents;
  for (const TaskId& id : state.index.troubled) {
    const TaskRecord& task = state.task(id);
    const bool cannot_be_mended =
        !task.failures.empty() && reaction_to(task.failures.back().kind) == Reaction::kQuarantine;
    const bool given_up = cannot_be_mended || task.expiries >= kMaxExpiries ||
                          (task.failures.size() >= kMaxFailures && !wants_second_worker(task));
    if (may_reseed(*state.geometry, task, retries_with_new_seed)) {
      intents.push_back(
          {.kind = IntentKind::kReseed, .task = id, .reason = quarantine_reason(task)});
    } else if (given_up) {
      intents.push_back(
          {.kind = IntentKind::kQuarantine, .task = id, .reason = quarantine_reason(task)});
    }
  }
  const auto begin_if_ready = [&](const TaskId& id, IntentKind kind) {
    const bool given_up = std::any_of(
        intents.begin(), intents.end(), [&id](const Intent& intent) { return intent.task == id; });
    if (state.index.ready.count(id) > 0 && !given_up)
      intents.push_back({.kind = kind, .task = id, .reason = {}});
  };
  begin_if_ready(TaskId::assemble(), IntentKind::kAssemble);
  begin_if_ready(TaskId::finetune(), IntentKind::kLaunchFinetune);
  add_boundary_intents(state, keep, intents);
  add_intents_by_kind(state, keep, intents);
  if (!intents.empty()) return intents;
  RunPhase phase = phase_of(state);
  if (phase == RunPhase::kRunning && state.grants.empty() && !anything_to_grant(state, keep))
    phase = RunPhase::kPartial;
  if (phase == RunPhase::kDone || phase == RunPhase::kPartial)
    intents.push_back({.kind = IntentKind::kFinish, .task = {}, .reason = {}, .phase = phase});
  return intents;
}

Reaction reaction_to(storage::ErrorKind kind) {
  switch (kind) {
    case storage::ErrorKind::kUsage:
      return Reaction::kQuarantine;
    case storage::ErrorKind::kNotFound:  // the damaged files it named are lost already, and come
                                         // again
    case storage::ErrorKind::kCorrupt:
    case storage::ErrorKind::kUnavailable:
    case storage::ErrorKind::kInternal:
      return Reaction::kRetry;
    case storage::ErrorKind::kExhausted:
      return Reaction::kCheckRoom;
    case storage::ErrorKind::kFenced:
      return Reaction::kForget;
  }
  return Reaction::kRetry;
}

std::size_t num_failed_workers(const TaskRecord& task) {
  std::set<std::string> workers;
  for (const Failure& failure : task.failures) workers.insert(failure.worker);
  return workers.size();
}

bool wants_second_worker(const TaskRecord& task) {
  // The MPI stage and the coordinator have no second self.
  return wire::is_pulled(task.id.stage) && task.failures.size() >= kMaxFailures &&
         num_failed_workers(task) < 2;
}

std::string quarantine_reason(const TaskRecord& task) {
  if (task.expiries >= kMaxExpiries) {
    return std::to_string(task.expiries) +
           " leases in a row ran out with nothing committed: its workers die, or " +
           "cannot reach the coordinator; the last one was of " + task.worker.text() + " (" +
           task.reason + ")";
  }
  const Failure& last = task.failures.back();
  return std::to_string(task.failures.size()) +
         (task.failures.size() == 1 ? " failure" : " failures in a row") + " on " +
         std::to_string(num_failed_workers(task)) +
         (num_failed_workers(task) == 1 ? " worker" : " workers") + "; the last one (" +
         std::string(storage::to_string(last.kind)) + "): " + last.message;
}

std::optional<LostSteps> lost_steps(const TaskRecord& task, const wire::Progress* progress) {
  if (!wire::has_checkpoints(task.id.stage)) return std::nullopt;
  // While it loads, a task counts layers.
  if (progress == nullptr || progress->phase == "loading") return std::nullopt;
  const std::int64_t since = first_step(task);
  if (progress->step <= since) return std::nullopt;
  return LostSteps{progress->step - since, since};
}

}  // namespace hedgerow::coordinator
