// What can happen to a run: the records of the journal. State is a fold over them (state.hpp), so
// everything a decision rests on is in an event, attempt and fencing token included, and late
// messages of a dead attempt reject themselves. Heartbeats, renewals and metrics are no events.
// JSON keys: coordinator/README.md "Events"; words are never renamed.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "coordinator/state/geometry.hpp"
#include "coordinator/state/task_id.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file_record.hpp"

namespace hedgerow::coordinator {

// Written by storage::Journal as the first record of a segment.
struct TermStarted {
  std::string recipe_hash{};  // of run.toml as it is recorded; empty: not yet
};
struct RunStarted {
  Geometry geometry;
  std::string build;
  RunInputs inputs{};
};
// Who holds finetune: the MPI stage, whose rank 0 has a uuid of its own.
inline constexpr const char* kMpiHolder = "mpi";

struct Granted {
  TaskId task;
  std::uint64_t token = 0;
  std::string worker;  // uuid; "coordinator" for assemble, kMpiHolder for finetune
  std::uint64_t incarnation = 0;
  std::string device;  // model name: byte-equality is promised within one
};
// `of`: whose token it is, should damage give it another meaning; absent in older records.
struct ShardCommitted {
  std::uint64_t token = 0;
  int shard = 0;
  storage::FileRecord file;
  std::optional<TaskId> of{};
};
struct CheckpointCommitted {
  std::uint64_t token = 0;
  std::int64_t step = 0;
  storage::FileRecord file;
  std::optional<TaskId> of{};
};
struct TaskDone {
  std::uint64_t token = 0;
  std::vector<storage::FileRecord> files;
  nlohmann::json result;
  std::optional<TaskId> of{};
};
// What an attempt that ended by itself costs: steps that it had reported since the checkpoint that
// is left, which the next one does again.
struct LostSteps {
  std::int64_t count = 0;
  std::int64_t since = 0;  // the checkpoint's step; 0: there is none
};
struct TaskFailed {
  std::uint64_t token = 0;
  storage::ErrorKind kind = storage::ErrorKind::kInternal;
  std::string message;
  std::optional<LostSteps> lost{};
};
struct TaskReleased {
  std::uint64_t token = 0;
  std::string reason;
  std::optional<LostSteps> lost{};  // its holder was killed: the run was to end at once
};
struct LeaseRevoked {
  std::uint64_t token = 0;
  std::string reason;
  bool expired = false;  // not renewed in time; absent in older records
  std::optional<LostSteps> lost{};
};  // expired, or its holder died
struct FileLost {
  std::string name;
  std::string reason;
};  // the one arrow back from committed
struct BoundaryDropped {
  int boundary = 0;
};  // deleted on purpose (keep_boundaries)
struct LogitsDropped {};  // the teacher's, all of them
struct Recaptured {
  TaskId task;
  std::string reason;
};  // a dropped piece is needed again
struct Quarantined {
  TaskId task;
  std::string reason;
};
struct Retried {
  TaskId task;
  std::string reason;
  std::optional<std::uint64_t> seed;
};
struct Noted {
  std::string text;
};  // for people: another build, journal damage
// run.toml as it is from now on.
struct RecipeRecorded {
  std::string text;
  std::vector<std::string> changes{};  // "workers.local: 2 -> 1"; empty: the run's first one
};

using Event = std::variant<TermStarted,
                           RunStarted,
                           Granted,
                           ShardCommitted,
                           CheckpointCommitted,
                           TaskDone,
                           TaskFailed,
                           TaskReleased,
                           LeaseRevoked,
                           FileLost,
                           BoundaryDropped,
                           Recaptured,
                           Quarantined,
                           Retried,
                           Noted,
                           RecipeRecorded,
                           LogitsDropped>;

// "; 12 steps since step 40 are done again", or nothing.
[[nodiscard]] std::string loss_text(const std::optional<LostSteps>& lost);
[[nodiscard]] std::string_view type_of(const Event& event);  // "granted", "shard_committed", ...
[[nodiscard]] nlohmann::json event_to_json(const Event& event);
// Throws kCorrupt naming the field.
[[nodiscard]] Event event_from_json(const nlohmann::json& json);

}  // namespace hedgerow::coordinator
