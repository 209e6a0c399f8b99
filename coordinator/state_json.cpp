#include "coordinator/state.hpp"
#include "coordinator/wire/json_fields.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace wire;  // the strict field readers

constexpr const char* kFormat = "state/1";

TaskState task_state_from_string(const std::string& word) {
  for (const TaskState state : {TaskState::kPending,
                                TaskState::kGranted,
                                TaskState::kDone,
                                TaskState::kDropped,
                                TaskState::kQuarantined}) {
    if (to_string(state) == word) return state;
  }
  throw storage::Error(storage::ErrorKind::kCorrupt, "snapshot: unknown task state '" + word + "'");
}

json task_to_json(const TaskRecord& task) {
  json failures = json::array();
  for (const Failure& failure : task.failures) {
    failures.push_back({{"worker", failure.worker},
                        {"kind", storage::to_string(failure.kind)},
                        {"message", failure.message}});
  }
  json out = {{"id", to_string(task.id)},
              {"state", to_string(task.state)},
              {"token", task.token},
              {"worker", task.worker},
              {"incarnation", task.incarnation},
              {"attempts", task.attempts},
              {"wasted", task.wasted},
              {"failures", failures},
              {"checkpoint_step", task.checkpoint_step},
              {"files", records_to_json(task.files)},
              {"result", task.result},
              {"seed", task.seed},
              {"devices", task.devices},
              {"reason", task.reason}};
  if (task.checkpoint) out["checkpoint"] = record_to_json(*task.checkpoint);
  return out;
}

TaskRecord task_from_json(const json& in) {
  TaskRecord task;
  task.id = task_id_from_string(string_field(in, "id"));
  task.state = task_state_from_string(string_field(in, "state"));
  task.token = uint_field(in, "token");
  task.worker = string_field(in, "worker");
  task.incarnation = uint_field(in, "incarnation");
  task.attempts = int_field(in, "attempts");
  task.wasted = in.value("wasted", 0);
  for (const json& failure : field(in, "failures")) {
    task.failures.push_back({string_field(failure, "worker"),
                             storage::error_kind_from_string(string_field(failure, "kind")),
                             string_field(failure, "message")});
  }
  if (in.contains("checkpoint")) task.checkpoint = record_from_json(object_field(in, "checkpoint"));
  task.checkpoint_step = int64_field(in, "checkpoint_step");
  task.files = records_from_json(in, "files");
  task.result = field(in, "result");
  task.seed = uint_field(in, "seed");
  task.devices = strings_field(in, "devices");
  task.reason = string_field(in, "reason");
  return task;
}

// A shard: its record, with "dropped" beside it if it was; null when missing.
json shard_to_json(const ShardRecord& shard) {
  if (shard.state == ShardState::kMissing) return nullptr;
  json out = record_to_json(shard.file);
  if (shard.state == ShardState::kDropped) out["dropped"] = true;
  return out;
}

ShardRecord shard_from_json(const json& in) {
  if (in.is_null()) return {};
  return {in.contains("dropped") ? ShardState::kDropped : ShardState::kCommitted,
          record_from_json(in)};
}

}  // namespace

json state_to_json(const State& state) {
  json out = {{"format", kFormat},
              {"last_token", state.last_token},
              {"tasks", json::array()},
              {"shards", json::array()}};
  if (state.geometry) {
    out["geometry"] = geometry_to_json(*state.geometry);
    out["inputs"] = inputs_to_json(state.inputs);
  }
  for (const auto& [id, task] : state.tasks) out["tasks"].push_back(task_to_json(task));
  for (const auto& boundary : state.shards) {
    json row = json::array();
    for (const ShardRecord& shard : boundary) row.push_back(shard_to_json(shard));
    out["shards"].push_back(row);
  }
  return out;
}

State state_from_json(const json& in) {
  if (const std::string format = string_field(in, "format"); format != kFormat) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "the journal's snapshot is of format '" + format.substr(0, 40) +
                             "', this build reads '" + kFormat +
                             "'; go on with the build that wrote it");
  }
  State state;
  state.last_token = uint_field(in, "last_token");
  if (in.contains("geometry")) {
    state.geometry = geometry_from_json(object_field(in, "geometry"));
    state.inputs = inputs_from_json(object_field(in, "inputs"));
  }
  for (const json& item : field(in, "tasks")) {
    TaskRecord task = task_from_json(item);
    if (task.state == TaskState::kGranted) state.grants[task.token] = task.id;
    state.tasks.emplace(task.id, std::move(task));
  }
  for (const json& row : field(in, "shards")) {
    auto& boundary = state.shards.emplace_back();
    for (const json& shard : row) boundary.push_back(shard_from_json(shard));
  }
  rebuild_index(state);
  return state;
}

}  // namespace hedgerow::coordinator
