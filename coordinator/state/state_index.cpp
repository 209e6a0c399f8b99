#include "coordinator/state/state_index.hpp"

#include "coordinator/state/state.hpp"
#include "coordinator/state/task_graph.hpp"

namespace hedgerow::coordinator {
namespace {

template <typename Set, typename Value>
void keep(Set& set, const Value& value, bool is_in) {
  if (is_in) {
    set.insert(value);
  } else {
    set.erase(value);
  }
}

}  // namespace

std::uint64_t stored_bytes(const TaskRecord& task) {
  std::uint64_t bytes = task.checkpoint ? task.checkpoint->file.size : 0;
  if (task.state != TaskState::kDone) return bytes;
  for (const storage::FileRecord& file : task.files) bytes += file.size;
  return bytes;
}

void look_again(State& state, const TaskRecord& task) {
  keep(state.index.ready, task.id, is_ready(state, task));
  const bool has_failed = !task.failures.empty() || task.expiries > 0;
  keep(state.index.troubled, task.id, task.state == TaskState::kPending && has_failed);
}

void rebuild_index(State& state) {
  StateIndex& index = state.index;
  index = {};
  index.boundaries.resize(state.shards.size());
  for (std::size_t boundary = 1; boundary < state.shards.size(); ++boundary) {
    BoundaryIndex& own = index.boundaries[boundary];
    own.missing_of_piece.resize(static_cast<std::size_t>(state.geometry->num_pieces()));
    for (std::size_t shard = 0; shard < state.shards[boundary].size(); ++shard) {
      if (state.shards[boundary][shard].state == ShardState::kCommitted) {
        index.stored_bytes += state.shards[boundary][shard].file.size;
        continue;
      }
      ++own.missing;
      ++own.missing_of_piece[shard / static_cast<std::size_t>(state.geometry->shards_per_capture)];
    }
  }
  for (const auto& [id, task] : state.tasks) {
    if (id.stage == Stage::kCapture) {
      const auto boundary = static_cast<std::size_t>(id.block) + 1;
      ++index.boundaries[boundary].captures[static_cast<std::size_t>(task.state)];
    }
    ++index.counts[static_cast<std::size_t>(id.stage)][static_cast<std::size_t>(task.state)];
    index.stored_bytes += stored_bytes(task);
    if (task.state == TaskState::kGranted) index.tokens_of[task.worker].insert(task.token);
  }
  // Only now: whether a task is ready is asked of the counts.
  for (const auto& [id, task] : state.tasks) look_again(state, task);
}

}  // namespace hedgerow::coordinator
