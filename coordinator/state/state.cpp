#include "coordinator/state/state.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "coordinator/state/task_graph.hpp"
#include "storage/files/hash.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::ErrorKind;

using Verdict = std::optional<Rejection>;

Verdict fenced(std::uint64_t token) {
  return Rejection{ErrorKind::kFenced,
                   "fencing token " + std::to_string(token) + " is not current"};
}

Verdict impossible(std::string reason) {
  return Rejection{ErrorKind::kInternal, std::move(reason)};
}

Verdict wrong_state(const TaskRecord& task, std::string_view event) {
  return impossible(to_string(task.id) + " is " + std::string(to_string(task.state)) + ", where '" +
                    std::string(event) + "' has no place");
}

Verdict other_task(std::uint64_t token, const TaskRecord& holder, const TaskId& of) {
  return impossible("fencing token " + std::to_string(token) + " is of " + to_string(holder.id) +
                    ", not of " + to_string(of));
}

// One overload an event: a new alternative of Event without one does not compile.
struct Applier {
  State& state;

  TaskRecord* find(const TaskId& id) {
    const auto found = state.tasks.find(id);
    return found == state.tasks.end() ? nullptr : &found->second;
  }

  TaskRecord* holder(std::uint64_t token) {
    const auto found = state.grants.find(token);
    return found == state.grants.end() ? nullptr : find(found->second);
  }

  // The only way into another state: counts and sets follow.
  void set_state(TaskRecord& task, TaskState next) {
    StateIndex& index = state.index;
    const TaskState before = std::exchange(task.state, next);
    const auto recount = [&](auto& counts) {
      --counts[static_cast<std::size_t>(before)];
      ++counts[static_cast<std::size_t>(next)];
    };
    recount(index.counts[static_cast<std::size_t>(task.id.stage)]);
    for (const storage::FileRecord& file : task.files) {
      if (before == TaskState::kDone) index.stored_bytes -= file.size;
      if (next == TaskState::kDone) index.stored_bytes += file.size;
    }
    if (task.id.stage == Stage::kCapture)
      recount(index.boundaries[static_cast<std::size_t>(task.id.block) + 1].captures);
    if (next == TaskState::kGranted) index.tokens_of[task.worker].insert(task.token);
    if (before == TaskState::kGranted) {
      const auto held = index.tokens_of.find(task.worker);
      held->second.erase(task.token);
      if (held->second.empty()) index.tokens_of.erase(held);
    }
    look_again(state, task);
    if (task.id.stage != Stage::kCapture) look_at_later_stages();
  }

  void look_at_later_stages() {
    for_each_late_task(*state.geometry, [this](const TaskId& id) {
      if (const TaskRecord* task = find(id)) look_again(state, *task);
    });
  }

  void set_shard(int boundary, int shard, ShardRecord next) {
    BoundaryIndex& index = state.index.boundaries[static_cast<std::size_t>(boundary)];
    ShardRecord& record =
        state.shards[static_cast<std::size_t>(boundary)][static_cast<std::size_t>(shard)];
    if (record.state == ShardState::kCommitted) state.index.stored_bytes -= record.file.size;
    if (next.state == ShardState::kCommitted) state.index.stored_bytes += next.file.size;
    const int missing =
        (next.state != ShardState::kCommitted) - (record.state != ShardState::kCommitted);
    record = std::move(next);
    if (missing == 0) return;
    const int piece = shard / state.geometry->shards_per_capture;
    index.missing += missing;
    index.missing_of_piece[static_cast<std::size_t>(piece)] += missing;
    if (const TaskRecord* reader = find(TaskId::capture(boundary, piece)))
      look_again(state, *reader);
    if (const TaskRecord* reader = find(TaskId::transfer(boundary))) look_again(state, *reader);
    if (const TaskRecord* reader = logits_of(state, boundary, piece)) look_again(state, *reader);
  }

  // The only way to another checkpoint, or to none.
  void set_checkpoint(TaskRecord& task, std::optional<Checkpoint> next) {
    if (task.checkpoint) state.index.stored_bytes -= task.checkpoint->file.size;
    if (next) state.index.stored_bytes += next->file.size;
    task.checkpoint.reset();
    if (next) task.checkpoint = *std::move(next);
  }

  static void forget_failures(TaskRecord& task) {
    task.failures.clear();
    task.expiries = 0;
  }

  void end_grant(TaskRecord& task, TaskState next, std::string reason) {
    state.grants.erase(task.token);
    task.reason = std::move(reason);
    set_state(task, next);
  }

  static void note_loss(TaskRecord& task, const std::optional<LostSteps>& lost) {
    if (lost) task.lost_steps += lost->count;
  }
  static void note_waste(TaskRecord& task, const std::optional<LostSteps>& lost) {
    ++task.wasted;
    note_loss(task, lost);
  }

  Verdict operator()(const TermStarted& event) {
    RecordedRecipe& recipe = state.recipe;
    if (!event.recipe_hash.empty() && event.recipe_hash != recipe.hash)
      recipe = {.text = {}, .hash = event.recipe_hash, .hash_before = {}};
    // The coordinator that was assembling is gone; what it wrote under its token is never named.
    TaskRecord* task = find(TaskId::assemble());
    if (task != nullptr && task->state == TaskState::kGranted) {
      ++task->wasted;
      end_grant(*task, TaskState::kPending, "the coordinator restarted while assembling");
    }
    return std::nullopt;
  }

  Verdict operator()(const RunStarted& event) {
    if (state.geometry) return impossible("the run has already started");
    const Geometry& geometry = event.geometry;
    state.geometry = geometry;
    state.build = event.build;
    state.inputs = event.inputs;
    state.shards.assign(static_cast<std::size_t>(geometry.last_boundary()) + 1, {});
    for (std::size_t boundary = 1; boundary < state.shards.size(); ++boundary)
      state.shards[boundary].resize(static_cast<std::size_t>(geometry.num_shards));
    for (const TaskId& id : tasks_of(geometry)) {
      TaskRecord task;
      task.id = id;
      task.seed = id.stage == Stage::kTransfer ? geometry.seed : 0;
      state.tasks.emplace(id, std::move(task));
    }
    rebuild_index(state);
    return std::nullopt;
  }

  Verdict operator()(const Granted& event) {
    TaskRecord* task = find(event.task);
    if (task == nullptr) return impossible("there is no task " + to_string(event.task));
    if (task->state != TaskState::kPending) return wrong_state(*task, "granted");
    if (event.token <= state.last_token) {
      return impossible("fencing token " + std::to_string(event.token) + " does not exceed " +
                        std::to_string(state.last_token));
    }
    state.last_token = event.token;
    state.grants[event.token] = event.task;
    task->token = event.token;
    task->worker = InternedString(event.worker);
    task->incarnation = event.incarnation;
    set_state(*task, TaskState::kGranted);
    task->reason.clear();
    ++task->attempts;
    if (!event.device.empty() &&
        std::find(task->devices.begin(), task->devices.end(), event.device) ==
            task->devices.end()) {
      task->devices.emplace_back(event.device);
    }
    return std::nullopt;
  }

  Verdict operator()(const ShardCommitted& event) {
    TaskRecord* task = holder(event.token);
    if (task == nullptr) return fenced(event.token);
    if (event.of && *event.of != task->id) return other_task(event.token, *task, *event.of);
    if (task->id.stage != Stage::kCapture) return wrong_state(*task, "shard_committed");
    const ShardRange range = shards_of_piece(*state.geometry, task->id.piece);
    if (event.shard < range.first || event.shard >= range.first + range.count) {
      return impossible("shard " + std::to_string(event.shard) + " is not of " +
                        to_string(task->id));
    }
    const int boundary = task->id.block + 1;
    const ShardRecord& shard =
        state.shards[static_cast<std::size_t>(boundary)][static_cast<std::size_t>(event.shard)];
    if (shard.state == ShardState::kCommitted) {
      return impossible("shard " + shard.file.name + " is already committed");
    }
    set_shard(boundary, event.shard, {ShardState::kCommitted, event.file});
    forget_failures(*task);
    return std::nullopt;
  }

  Verdict operator()(const CheckpointCommitted& event) {
    TaskRecord* task = holder(event.token);
    if (task == nullptr) return fenced(event.token);
    if (event.of && *event.of != task->id) return other_task(event.token, *task, *event.of);
    if (!wire::has_checkpoints(task->id.stage)) {
      return wrong_state(*task, "checkpointed");
    }
    if (event.step < first_step(*task)) {
      return impossible("checkpoint at step " + std::to_string(event.step) + " is behind step " +
                        std::to_string(first_step(*task)));
    }
    set_checkpoint(*task, Checkpoint{event.file, event.step});
    forget_failures(*task);
    return std::nullopt;
  }

  Verdict operator()(const TaskDone& event) {
    TaskRecord* task = holder(event.token);
    if (task == nullptr) return fenced(event.token);
    if (event.of && *event.of != task->id) return other_task(event.token, *task, *event.of);
    // A shard of this capture may have been lost to another reader since it was committed.
    if (task->id.stage == Stage::kCapture &&
        !piece_complete(state, task->id.block + 1, task->id.piece)) {
      end_grant(*task, TaskState::kPending, "not all of its shards are committed");
      return std::nullopt;
    }
    forget_failures(*task);
    task->files = event.files;
    end_grant(*task, TaskState::kDone, "");
    task->result = packed_result(event.result);
    set_checkpoint(*task, std::nullopt);
    return std::nullopt;
  }

  Verdict operator()(const TaskFailed& event) {
    TaskRecord* task = holder(event.token);
    if (task == nullptr) return fenced(event.token);
    task->failures.push_back({task->worker, event.kind, event.message});
    note_waste(*task, event.lost);
    end_grant(*task,
              TaskState::kPending,
              "failed (" + std::string(storage::to_string(event.kind)) + "): " + event.message +
                  loss_text(event.lost));
    return std::nullopt;
  }

  Verdict operator()(const TaskReleased& event) {
    if (TaskRecord* task = holder(event.token)) note_loss(*task, event.lost);
    return end_by_token(event.token, "released: " + event.reason + loss_text(event.lost));
  }
  Verdict operator()(const LeaseRevoked& event) {
    if (TaskRecord* task = holder(event.token)) {
      note_waste(*task, event.lost);
      task->expiries += event.expired ? 1 : 0;
    }
    return end_by_token(event.token, "lease revoked: " + event.reason + loss_text(event.lost));
  }

  Verdict end_by_token(std::uint64_t token, std::string reason) {
    TaskRecord* task = holder(token);
    if (task == nullptr) return fenced(token);
    end_grant(*task, TaskState::kPending, std::move(reason));
    return std::nullopt;
  }

  Verdict operator()(const FileLost& event) {
    for (std::size_t boundary = 1; boundary < state.shards.size(); ++boundary) {
      for (std::size_t index = 0; index < state.shards[boundary].size(); ++index) {
        const ShardRecord& shard = state.shards[boundary][index];
        if (shard.state != ShardState::kCommitted || shard.file.name != event.name) continue;
        set_shard(static_cast<int>(boundary), static_cast<int>(index), {});
        const int piece = static_cast<int>(index) / state.geometry->shards_per_capture;
        TaskRecord* task = find(TaskId::capture(static_cast<int>(boundary) - 1, piece));
        if (task->state != TaskState::kDone) return std::nullopt;
        ++task->wasted;
        end_grant(*task, TaskState::kPending, lost_reason(event));
        return std::nullopt;
      }
    }
    for (auto& [id, task] : state.tasks) {
      if (task.checkpoint && task.checkpoint->file.name == event.name) {
        set_checkpoint(task, std::nullopt);
        return std::nullopt;
      }
      const auto named = [&event](const storage::FileRecord& file) {
        return file.name == event.name;
      };
      if (task.state != TaskState::kDone ||
          std::none_of(task.files.begin(), task.files.end(), named))
        continue;
      ++task.wasted;
      end_grant(task, TaskState::kPending, lost_reason(event));
      task.files.clear();
      task.result.clear();
      return std::nullopt;
    }
    return impossible("no committed file is called " + event.name);
  }

  static std::string lost_reason(const FileLost& event) {
    return "lost " + event.name + ": " + event.reason;
  }

  Verdict operator()(const BoundaryDropped& event) {
    // As the logits were named before they had an event: a boundary that hidden states never have.
    if (state.geometry && event.boundary == state.geometry->num_blocks() &&
        state.geometry->num_logit_pieces > 0)
      return (*this)(LogitsDropped{});
    if (!state.geometry || event.boundary < 1 ||
        event.boundary >= static_cast<int>(state.shards.size())) {
      return impossible("there is no boundary " + std::to_string(event.boundary));
    }
    std::vector<TaskRecord*> done;
    for (int piece = 0; piece < state.geometry->num_pieces(); ++piece) {
      TaskRecord* task = find(TaskId::capture(event.boundary - 1, piece));
      if (task->state == TaskState::kDropped) continue;
      if (task->state != TaskState::kDone) return wrong_state(*task, "dropped");
      done.push_back(task);
    }
    for (TaskRecord* task : done) set_state(*task, TaskState::kDropped);
    for (int shard = 0; shard < state.geometry->num_shards; ++shard) {
      // The name stays: a restart finishes the deletion by it.
      ShardRecord dropped =
          state.shards[static_cast<std::size_t>(event.boundary)][static_cast<std::size_t>(shard)];
      dropped.state = ShardState::kDropped;
      set_shard(event.boundary, shard, std::move(dropped));
    }
    return std::nullopt;
  }

  // The names of their files stay, as those of shards do.
  Verdict operator()(const LogitsDropped&) {
    if (!state.geometry) return impossible("the run has not started");
    std::vector<TaskRecord*> done;
    for (int piece = 0; piece < state.geometry->num_logit_pieces; ++piece) {
      TaskRecord* task = find(TaskId::logits(piece));
      if (task->state == TaskState::kDropped) continue;
      if (task->state != TaskState::kDone) return wrong_state(*task, "dropped");
      done.push_back(task);
    }
    for (TaskRecord* task : done) set_state(*task, TaskState::kDropped);
    return std::nullopt;
  }

  Verdict operator()(const Recaptured& event) {
    TaskRecord* task = find(event.task);
    if (task == nullptr) return impossible("there is no task " + to_string(event.task));
    if (task->state != TaskState::kDropped) return wrong_state(*task, "recaptured");
    if (task->id.stage == Stage::kCapture) {
      const ShardRange range = shards_of_piece(*state.geometry, task->id.piece);
      for (int shard = range.first; shard < range.first + range.count; ++shard)
        set_shard(task->id.block + 1, shard, {});
    } else {
      task->files.clear();
      task->result.clear();
    }
    task->reason = event.reason;
    set_state(*task, TaskState::kPending);
    return std::nullopt;
  }

  Verdict operator()(const Quarantined& event) {
    TaskRecord* task = find(event.task);
    if (task == nullptr) return impossible("there is no task " + to_string(event.task));
    if (task->state != TaskState::kPending) return wrong_state(*task, "quarantined");
    task->reason = event.reason;
    set_state(*task, TaskState::kQuarantined);
    return std::nullopt;
  }

  Verdict operator()(const Retried& event) {
    TaskRecord* task = find(event.task);
    if (task == nullptr) return impossible("there is no task " + to_string(event.task));
    if (task->state != TaskState::kQuarantined && task->state != TaskState::kPending) {
      return wrong_state(*task, "retried");
    }
    forget_failures(*task);
    task->reason = event.reason;
    set_state(*task, TaskState::kPending);
    if (event.seed) {
      task->seed = *event.seed;
      // A checkpoint is of the seed that began it.
      set_checkpoint(*task, std::nullopt);
    }
    return std::nullopt;
  }

  Verdict operator()(const Noted&) { return std::nullopt; }

  Verdict operator()(const RecipeRecorded& event) {
    RecordedRecipe& recipe = state.recipe;
    std::string hash = storage::hash128(std::as_bytes(std::span(event.text))).hex();
    if (hash != recipe.hash) recipe.hash_before = std::exchange(recipe.hash, std::move(hash));
    recipe.text = event.text;
    return std::nullopt;
  }
};

}  // namespace

std::string packed_result(const nlohmann::json& result) {
  std::string packed;
  if (!result.is_null()) nlohmann::json::to_cbor(result, packed);
  return packed;
}

nlohmann::json result_of(const TaskRecord& task) {
  return task.result.empty() ? nlohmann::json() : nlohmann::json::from_cbor(task.result);
}

std::string_view to_string(TaskState state) {
  switch (state) {
    case TaskState::kPending:
      return "pending";
    case TaskState::kGranted:
      return "granted";
    case TaskState::kDone:
      return "done";
    case TaskState::kDropped:
      return "dropped";
    case TaskState::kQuarantined:
      return "quarantined";
  }
  return "pending";
}

const TaskRecord* State::holder(std::uint64_t token) const {
  const auto found = grants.find(token);
  return found == grants.end() ? nullptr : &tasks.at(found->second);
}

std::optional<Rejection> apply(State& state, const Event& event) {
  return std::visit(Applier{state}, event);
}

}  // namespace hedgerow::coordinator
