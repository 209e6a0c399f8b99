#include <type_traits>
#include <utility>

#include "coordinator/state/state.hpp"
#include "storage/json/fields.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace storage;  // the strict field readers

constexpr const char* kFormat = "state/2";
constexpr const char* kOlderFormat = "state/1";  // every field written out, but for the build

}  // namespace

void from_word(std::string_view word, TaskState& state) {
  for (const TaskState known : {TaskState::kPending,
                                TaskState::kGranted,
                                TaskState::kDone,
                                TaskState::kDropped,
                                TaskState::kQuarantined}) {
    if (to_string(known) != word) continue;
    state = known;
    return;
  }
  throw storage::Error(storage::ErrorKind::kCorrupt,
                       "snapshot: unknown task state '" + std::string(word) + "'");
}

template <typename Visitor, storage::Is<Failure> T>
void visit_fields(Visitor& visitor, T& failure) {
  visitor.field("worker", failure.worker);
  visitor.field("kind", failure.kind);
  visitor.field("message", failure.message);
}
template <typename Visitor, storage::Is<Checkpoint> T>
void visit_fields(Visitor& visitor, T& checkpoint) {
  visitor.field("checkpoint", checkpoint.file);
  visitor.optional_field("checkpoint_step", checkpoint.step);
}
// What has no value is left out: of a hundred thousand tasks most have little to say.
template <typename Visitor, storage::Is<TaskRecord> T>
void visit_fields(Visitor& visitor, T& task) {
  visitor.field("id", task.id);
  visitor.field("state", task.state);
  visitor.sparse_field("token", task.token);
  visitor.sparse_field("worker", task.worker);
  visitor.sparse_field("incarnation", task.incarnation);
  visitor.sparse_field("attempts", task.attempts);
  visitor.sparse_field("wasted", task.wasted);
  visitor.sparse_field("lost_steps", task.lost_steps);
  visitor.sparse_field("expiries", task.expiries);
  visitor.sparse_field("seed", task.seed);
  visitor.sparse_field("devices", task.devices);
  visitor.sparse_field("reason", task.reason);
  visitor.sparse_field("failures", task.failures);
  visitor.sparse_field("files", task.files);
  json result = task.result.empty() ? json() : result_of(task);
  visitor.sparse_field("result", result);
  std::optional<Checkpoint> checkpoint;
  if (task.checkpoint) checkpoint = *task.checkpoint;
  visitor.fields_of("checkpoint", checkpoint);
  if constexpr (!std::is_const_v<T>) {
    task.result = packed_result(result);
    if (checkpoint) task.checkpoint = *std::move(checkpoint);
  }
}

template <typename Visitor, storage::Is<RecordedRecipe> T>
void visit_fields(Visitor& visitor, T& recipe) {
  visitor.field("text", recipe.text);
  visitor.field("hash", recipe.hash);
  visitor.field("hash_before", recipe.hash_before);
}

namespace {

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
    head["geometry"] = fields_to_json(*state.geometry);
    head["build"] = state.build;
    head["inputs"] = fields_to_json(state.inputs);
  }
  if (!state.recipe.hash.empty()) head["recipe"] = fields_to_json(state.recipe);
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
    sink(dump(fields_to_json(task)));
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
    state.geometry = fields_from_json<Geometry>(object_field(in, "geometry"));
    if (in.contains("build")) state.build = string_field(in, "build");
    state.inputs = fields_from_json<RunInputs>(object_field(in, "inputs"));
  }
  if (in.contains("recipe"))
    state.recipe = fields_from_json<RecordedRecipe>(object_field(in, "recipe"));
  for (const json& item : field(in, "tasks")) {
    auto task = fields_from_json<TaskRecord>(item);
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
