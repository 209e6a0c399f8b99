#include <algorithm>
#include <utility>

#include "coordinator/state/state.hpp"

namespace hedgerow::coordinator {
namespace {

const TaskRecord* find(const State& state, const TaskId& id) {
  const auto found = state.tasks.find(id);
  return found == state.tasks.end() ? nullptr : &found->second;
}

int num_open(const State& state, Stage kind) {
  return state.index.count(kind, TaskState::kPending) +
         state.index.count(kind, TaskState::kGranted);
}

// A quarantined reader needs nothing: a retry brings the piece back by Recaptured.
bool still_reads(const TaskRecord* task) {
  return task != nullptr &&
         (task->state == TaskState::kPending || task->state == TaskState::kGranted);
}

}  // namespace

ShardRange shards_of_piece(const Geometry& geometry, int piece) {
  const int first = piece * geometry.shards_per_capture;
  return {first, std::min(geometry.shards_per_capture, geometry.num_shards - first)};
}

bool piece_complete(const State& state, int boundary, int piece) {
  if (boundary == 0) return true;
  return state.index.boundaries.at(static_cast<std::size_t>(boundary))
             .missing_of_piece.at(static_cast<std::size_t>(piece)) == 0;
}

bool boundary_complete(const State& state, int boundary) {
  return boundary == 0 ||
         state.index.boundaries.at(static_cast<std::size_t>(boundary)).missing == 0;
}

const TaskRecord* logits_of(const State& state, int boundary, int piece) {
  const Geometry& geometry = *state.geometry;
  if (!geometry.logits_from_boundary || boundary != geometry.last_boundary()) return nullptr;
  return find(state, TaskId::logits(piece));
}

bool is_needed_again(const State& state, Stage kind) {
  const std::optional<Stage> reader = wire::read_by(kind);
  return reader && state.index.count(kind, TaskState::kDropped) > 0 && num_open(state, *reader) > 0;
}

bool piece_needed(const State& state, int boundary, int piece) {
  if (still_reads(logits_of(state, boundary, piece))) return true;
  const TaskRecord* capture = find(state, TaskId::capture(boundary, piece));
  if (still_reads(find(state, TaskId::transfer(boundary))) || still_reads(capture)) return true;
  return capture != nullptr && capture->state == TaskState::kDropped &&
         piece_needed(state, boundary + 1, piece);
}

bool boundary_may_be_needed(const State& state, int boundary) {
  for (std::size_t b = static_cast<std::size_t>(boundary);; ++b) {
    if (still_reads(find(state, TaskId::transfer(static_cast<int>(b))))) return true;
    const TaskRecord* logits = logits_of(state, static_cast<int>(b), 0);
    if (logits != nullptr && num_open(state, logits->id.stage) > 0) return true;
    if (b + 1 >= state.index.boundaries.size()) return false;  // nothing is captured from it
    const auto& readers = state.index.boundaries[b + 1].captures;
    if (readers[static_cast<std::size_t>(TaskState::kPending)] > 0 ||
        readers[static_cast<std::size_t>(TaskState::kGranted)] > 0)
      return true;
    if (readers[static_cast<std::size_t>(TaskState::kDropped)] == 0) return false;
  }
}

RunPhase phase_of(const State& state) {
  if (!state.geometry) return RunPhase::kNew;
  if (!state.grants.empty() || !state.index.ready.empty()) return RunPhase::kRunning;
  bool all_done = true;
  int boundary = 0;  // the last that was asked about: its captures follow one another
  bool may_be_needed = false;
  for (const auto& [id, task] : state.tasks) {
    if (task.state == TaskState::kDone) continue;
    if (task.state == TaskState::kDropped) {
      if (id.stage != Stage::kCapture) {
        if (is_needed_again(state, id.stage)) return RunPhase::kRunning;
        continue;
      }
      if (std::exchange(boundary, id.block + 1) != id.block + 1)
        may_be_needed = boundary_may_be_needed(state, boundary);
      if (may_be_needed && piece_needed(state, boundary, id.piece))
        return RunPhase::kRunning;  // it will be recaptured
      continue;
    }
    all_done = false;
  }
  return all_done ? RunPhase::kDone : RunPhase::kPartial;
}

}  // namespace hedgerow::coordinator
