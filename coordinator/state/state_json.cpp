#include <utility>

#include "coordinator/state/state.hpp"
#include "coordinator/wire/json_fields.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace wire;  // the strict field readers

constexpr const char* kFormat = "state/2";
constexpr const char* kOlderFormat = "state/1";  // every field written out, but for the build

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

// What has no value is left out: of a hundred thousand tasks most have little to say.
json task_to_json(const TaskRecord& task) {
  json out = {{"id", to_string(task.id)}, {"state", to_string(task.state)}};
  const auto put = [&out](const char* key, const auto& value) {
    if (value != std::decay_t<decltype(value)>{}) out[key] = value;
  };
  put("token", task.token);
  put("worker", task.worker);
  put("incarnation", task.incarnation);
  put("attempts", task.attempts);
  put("wasted", task.wasted);
  put("lost_steps", task.lost_steps);
  put("expiries", task.expiries);
  put("seed", task.seed);
  put("devices", task.devices);
  put("reason", task.reason);
  if (!task.result.empty()) out["result"] = result_of(task);
  for (const Failure& failure : task.failures) {
    out["failures"].push_back({{"worker", failure.worker},
                               {"kind", storage::to_string(failure.kind)},
                               {"message", failure.message}});
  }
  if (!task.files.empty()) out["files"] = records_to_json(task.files);
  if (task.checkpoint) {
    out["checkpoint"] = record_to_json(task.checkpoint->file);
    out["checkpoint_step"] = task.checkpoint->step;
  }
  return out;
}

TaskRecord task_from_json(const json& in) {
  TaskRecord task;
  task.id = task_id_from_string(string_field(in, "id"));
  task.state = task_state_from_string(string_field(in, "state"));
  const auto has = [&in](const char* key) { return in.contains(key); };
  if (has("token")) task.token = uint_field(in, "token");
  if (has("worker")) task.worker = InternedString(string_field(in, "worker"));
  if (has("incarnation")) task.incarnation = uint_field(in, "incarnation");
  if (has("attempts")) task.attempts = int_field(in, "attempts");
  if (has("wasted")) task.wasted = int_field(in, "wasted");
  if (has("lost_steps")) task.lost_steps = int64_field(in, "lost_steps");
  if (has("expiries")) task.expiries = int_field(in, "expiries");
  if (has("result")) task.result = packed_result(field(in, "result"));
  if (has("seed")) task.seed = uint_field(in, "seed");
  if (has("devices")) {
    for (const std::string& device : strings_field(in, "devices"))
      task.devices.emplace_back(device);
  }
  if (has("reason")) task.reason = string_field(in, "reason");
  if (has("failures")) {
    for (const json& failure : field(in, "failures")) {
      task.failures.push_back({InternedString(string_field(failure, "worker")),
                               storage::error_kind_from_string(string_field(failure, "kind")),
                               string_field(failure, "message")});
    }
  }
  if (has("files")) task.files = records_from_json(in, "files");
  if (has("checkpoint")) {
    task.checkpoint = Checkpoint{record_from_json(object_field(in, "checkpoint")),
                                 has("checkpoint_step") ? int64_field(in, "checkpoint_step") : 0};
  }
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

void write_state(const State& state, const storage::TextSink& sink) {
  // Names and messages that are not UTF-8 must not keep a snapshot from being written.
  const auto dump = [](const json& value) {
    return value.dump(-1, ' ', false, json::error_handler_t::replace);
  };
  json head = {{"format", kFormat}, {"last_token", state.last_token}};
  if (state.geometry) {
    head["geometry"] = geometry_to_json(*state.geometry);
    head["build"] = state.build;
    head["inputs"] = inputs_to_json(state.inputs);
  }
  if (const RecordedRecipe& recipe = state.recipe; !recipe.hash.empty()) {
    head["recipe"] = {
        {"text", recipe.text}, {"hash", recipe.hash}, {"hash_before", recipe.hash_before}};
  }
  std::string text = dump(head);
  text.back() = ',';
  sink(text);
  sink("\"shards\":");
  std::string_view row_before = "[";
  for (const auto& boundary : state.shards) {
    sink(std::exchange(row_before, ","));
    std::string_view before = "[";
    for (const ShardRecord& shard : boundary) {
      sink(std::exchange(before, ","));
      sink(dump(shard_to_json(shard)));
    }
    sink(boundary.empty() ? "[]" : "]");
  }
  sink(state.shards.empty() ? "[]" : "]");
  sink(",\"tasks\":");
  std::string_view before = "[";
  for (const auto& [id, task] : state.tasks) {
    sink(std::exchange(before, ","));
    sink(dump(task_to_json(task)));
  }
  sink(state.tasks.empty() ? "[]}" : "]}");
}

json state_to_json(const State& state) {
  std::string text;
  write_state(state, [&](std::string_view piece) { text += piece; });
  return json::parse(text);
}

State state_from_json(const json& in) {
  if (const std::string format = string_field(in, "format");
      format != kFormat && format != kOlderFormat) {
    throw storage::Error(storage::ErrorKind::kUsage,
                         "the journal's snapshot is of format '" + format.substr(0, 40) +
                             "', this build reads '" + kFormat +
                             "'; go on with the build that wrote it");
  }
  State state;
  state.last_token = uint_field(in, "last_token");
  if (in.contains("geometry")) {
    state.geometry = geometry_from_json(object_field(in, "geometry"));
    if (in.contains("build")) state.build = string_field(in, "build");
    state.inputs = inputs_from_json(object_field(in, "inputs"));
  }
  if (in.contains("recipe")) {
    const json& recipe = object_field(in, "recipe");
    state.recipe = {string_field(recipe, "text"),
                    string_field(recipe, "hash"),
                    string_field(recipe, "hash_before")};
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
