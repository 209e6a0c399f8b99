// The coordinator's memory of a run, as a fold over its events. apply() is pure and total: it
// changes memory only, and answers every (state, event) pair either by the new state or by a
// rejection with its reason; the table in coordinator/README.md says which, and a test walks it.
// Restart = replay through the same apply(). Nothing goes backwards but for FileLost. No booleans
// beside the states: whether a pending task may be granted follows from others.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/state/boxed_optional.hpp"
#include "coordinator/state/events.hpp"
#include "coordinator/state/interned_string.hpp"
#include "coordinator/state/state_index.hpp"
#include "storage/files/text_writer.hpp"

namespace hedgerow::coordinator {

enum class TaskState { kPending, kGranted, kDone, kDropped, kQuarantined };
[[nodiscard]] std::string_view to_string(TaskState state);  // "pending", ...
void from_word(std::string_view word, TaskState& state);    // Throws kCorrupt

struct Failure {
  InternedString worker;
  storage::ErrorKind kind = storage::ErrorKind::kInternal;
  std::string message;
  bool operator==(const Failure&) const = default;
};

struct Checkpoint {
  storage::FileRecord file;
  std::int64_t step = 0;
  bool operator==(const Checkpoint&) const = default;
};

struct TaskRecord {
  TaskId id;
  TaskState state = TaskState::kPending;
  std::uint64_t token = 0;        // of the current or the last grant
  InternedString worker;          // who holds or last held it
  std::uint64_t incarnation = 0;  // of that worker
  int attempts = 0;
  int wasted = 0;  // of the attempts: failed, lease lost, or made for a file that was lost
  std::int64_t lost_steps = 0;  // that those had done and the next ones did again
  // In a row: progress (a commit, a checkpoint, being done) and a retry forget them.
  std::vector<Failure> failures;
  int expiries = 0;                        // leases that ran out, in a row likewise
  BoxedOptional<Checkpoint> checkpoint;    // from which the next attempt goes on
  std::vector<storage::FileRecord> files;  // committed outputs other than shards
  std::string result;                      // of the worker that did it: packed_result()
  std::uint64_t seed = 0;                  // transfer
  std::vector<InternedString>
      devices;         // models that worked on it, in order of first use: provenance
  std::string reason;  // why it last went back to pending, or into quarantine
  bool operator==(const TaskRecord&) const = default;
};

// Where the next attempt begins; 0 without a checkpoint.
[[nodiscard]] inline std::int64_t first_step(const TaskRecord& task) {
  return task.checkpoint ? task.checkpoint->step : 0;
}

// As TaskRecord keeps it: CBOR, because as values they take many times as much; empty for null.
[[nodiscard]] std::string packed_result(const nlohmann::json& result);
[[nodiscard]] nlohmann::json result_of(const TaskRecord& task);

enum class ShardState { kMissing, kCommitted, kDropped };
struct ShardRecord {
  ShardState state = ShardState::kMissing;
  storage::FileRecord file;  // kept when dropped, so that a restart can finish the deletion
  bool operator==(const ShardRecord&) const = default;
};

// What run.toml has to be. Each term's first record repeats the hash, so that the file is known
// even if the record of its text is damaged.
struct RecordedRecipe {
  std::string text;  // empty: not recorded, or damaged
  std::string hash;  // XXH3-128 of the text; empty: not recorded
  std::string
      hash_before;  // of the text before the last change: run.toml until the new one is there
  bool operator==(const RecordedRecipe&) const = default;
};

struct State {
  std::optional<Geometry> geometry;  // nullopt: the run has not started
  std::string build;                 // that started it
  RunInputs inputs;
  RecordedRecipe recipe;
  std::map<TaskId, TaskRecord> tasks;
  std::map<std::uint64_t, TaskId> grants;  // current ones, by fencing token
  std::vector<std::vector<ShardRecord>>
      shards;                    // [boundary][shard]; boundary 0 is empty: it is never stored
  std::uint64_t last_token = 0;  // the largest ever granted
  StateIndex index;              // follows from all of the above

  bool operator==(const State&) const = default;

  [[nodiscard]] const TaskRecord& task(const TaskId& id) const { return tasks.at(id); }
  // The task that holds `token` now; null if none does.
  [[nodiscard]] const TaskRecord* holder(std::uint64_t token) const;
};

// kind: kFenced (the token is not current: drop the work), kInternal (this cannot happen in a run
// of ours).
struct Rejection {
  storage::ErrorKind kind = storage::ErrorKind::kInternal;
  std::string reason;
};

// nullopt: applied. A rejected event leaves the state as it was.
[[nodiscard]] std::optional<Rejection> apply(State& state, const Event& event);

// Questions that the scheduler, the actions and status ask alike.
struct ShardRange {
  int first = 0, count = 0;
};
[[nodiscard]] ShardRange shards_of_piece(const Geometry& geometry, int piece);
[[nodiscard]] bool boundary_complete(const State& state, int boundary);  // true for boundary 0
// The piece's shards of `boundary` are all there; true for boundary 0.
[[nodiscard]] bool piece_complete(const State& state, int boundary, int piece);
// The logits that are computed from this piece of `boundary`; null if none are.
[[nodiscard]] const TaskRecord* logits_of(const State& state, int boundary, int piece);
// Files of tasks of this kind were dropped, and the kind that reads them is to be done again.
[[nodiscard]] bool is_needed_again(const State& state, Stage kind);
// Something that is not done yet reads this piece of `boundary`.
[[nodiscard]] bool piece_needed(const State& state, int boundary, int piece);
// False: no piece of it is. True says only that the pieces are worth asking for.
[[nodiscard]] bool boundary_may_be_needed(const State& state, int boundary);

enum class RunPhase { kNew, kRunning, kDone, kPartial };
// kPartial: nothing is granted, nothing can be granted, and not everything is done.
[[nodiscard]] RunPhase phase_of(const State& state);

// The snapshot that storage::Journal keeps every 50,000 records.
[[nodiscard]] nlohmann::json state_to_json(const State& state);
// The same as text, a task or a shard at a time: as a value it takes many times its size.
void write_state(const State& state, const storage::TextSink& sink);
[[nodiscard]] State state_from_json(
    const nlohmann::json& json);  // Throws kUsage for another format, kCorrupt

}  // namespace hedgerow::coordinator
