// What follows from a state's records, kept beside them so that no question of the scheduler walks
// a hundred thousand tasks. apply() keeps it up to date; rebuild_index() makes it from the records,
// after a snapshot, and in tests, which hold the two against each other. It is never stored.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "coordinator/state/task_id.hpp"

namespace hedgerow::coordinator {

struct State;
struct TaskRecord;
enum class TaskState;

inline constexpr std::size_t kNumTaskStates = 5;
inline constexpr std::size_t kNumStages = 6;

struct BoundaryIndex {
  int missing = 0;                    // shards that are not committed
  std::vector<int> missing_of_piece;  // the same by piece
  // The captures that write this boundary, by TaskState.
  std::array<int, kNumTaskStates> captures{};
  bool operator==(const BoundaryIndex&) const = default;
};

struct StateIndex {
  std::vector<BoundaryIndex> boundaries;  // as State::shards; 0 is empty
  // How many tasks of each Stage are in each TaskState.
  std::array<std::array<int, kNumTaskStates>, kNumStages> counts{};
  std::set<TaskId> ready;     // pending, and everything they read is committed
  std::set<TaskId> troubled;  // pending, and failed before
  std::map<std::string, std::set<std::uint64_t>> tokens_of;  // current grants by worker
  std::uint64_t stored_bytes = 0;  // of committed files that are not deleted, checkpoints included
  bool operator==(const StateIndex&) const = default;

  [[nodiscard]] int count(Stage stage, TaskState state) const {
    return counts[static_cast<std::size_t>(stage)][static_cast<std::size_t>(state)];
  }
  [[nodiscard]] int total(Stage stage) const {
    const auto& of_stage = counts[static_cast<std::size_t>(stage)];
    return std::accumulate(of_stage.begin(), of_stage.end(), 0);
  }
};

// Bytes of a task's checkpoint and, while it is done, its files.
[[nodiscard]] std::uint64_t stored_bytes(const TaskRecord& task);
// Whether `task` belongs into `ready` and `troubled`; the counts are right already.
void look_again(State& state, const TaskRecord& task);
void rebuild_index(State& state);

}  // namespace hedgerow::coordinator
