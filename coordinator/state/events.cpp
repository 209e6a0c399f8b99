#include "coordinator/state/events.hpp"

#include <algorithm>
#include <array>

#include "coordinator/wire/json_fields.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace wire;  // the strict field readers
using storage::Error;
using storage::ErrorKind;

// In the order of the variant's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<Event>> kTypes = {"term_started",
                                                                             "run_started",
                                                                             "granted",
                                                                             "shard_committed",
                                                                             "checkpointed",
                                                                             "done",
                                                                             "failed",
                                                                             "released",
                                                                             "revoked",
                                                                             "lost",
                                                                             "dropped",
                                                                             "recaptured",
                                                                             "quarantined",
                                                                             "retried",
                                                                             "noted",
                                                                             "recipe_recorded",
                                                                             "logits_dropped"};

TaskId task_field(const json& object) { return task_id_from_string(string_field(object, "task")); }

json body(const TermStarted& e) {
  return e.recipe_hash.empty() ? json::object() : json{{"recipe", e.recipe_hash}};
}
json body(const RunStarted& e) {
  return {{"geometry", geometry_to_json(e.geometry)},
          {"build", e.build},
          {"inputs", inputs_to_json(e.inputs)}};
}
json body(const Granted& e) {
  return {{"task", to_string(e.task)},
          {"token", e.token},
          {"worker", e.worker},
          {"incarnation", e.incarnation},
          {"device", e.device}};
}
json with_task(json out, const std::optional<TaskId>& of) {
  if (of) out["of"] = to_string(*of);
  return out;
}
json body(const ShardCommitted& e) {
  return with_task({{"token", e.token}, {"shard", e.shard}, {"file", record_to_json(e.file)}},
                   e.of);
}
json body(const CheckpointCommitted& e) {
  return with_task({{"token", e.token}, {"step", e.step}, {"file", record_to_json(e.file)}}, e.of);
}
json body(const TaskDone& e) {
  return with_task({{"token", e.token}, {"files", records_to_json(e.files)}, {"result", e.result}},
                   e.of);
}
json with_loss(json out, const std::optional<LostSteps>& lost) {
  if (lost) out["lost_steps"] = {{"count", lost->count}, {"since", lost->since}};
  return out;
}
json body(const TaskFailed& e) {
  return with_loss(
      {{"token", e.token}, {"kind", storage::to_string(e.kind)}, {"message", e.message}}, e.lost);
}
json body(const TaskReleased& e) {
  return with_loss({{"token", e.token}, {"reason", e.reason}}, e.lost);
}
json body(const LeaseRevoked& e) {
  json out = {{"token", e.token}, {"reason", e.reason}};
  if (e.expired) out["expired"] = true;
  return with_loss(std::move(out), e.lost);
}
json body(const FileLost& e) { return {{"name", e.name}, {"reason", e.reason}}; }
json body(const LogitsDropped&) { return json::object(); }
json body(const BoundaryDropped& e) { return {{"boundary", e.boundary}}; }
json body(const Recaptured& e) { return {{"task", to_string(e.task)}, {"reason", e.reason}}; }
json body(const Quarantined& e) { return {{"task", to_string(e.task)}, {"reason", e.reason}}; }
json body(const Retried& e) {
  json out = {{"task", to_string(e.task)}, {"reason", e.reason}};
  if (e.seed) out["seed"] = *e.seed;
  return out;
}
json body(const Noted& e) { return {{"text", e.text}}; }
json body(const RecipeRecorded& e) {
  json out = {{"text", e.text}};
  if (!e.changes.empty()) out["changes"] = e.changes;
  return out;
}

template <typename T>
T parse(const json& body);

template <>
TermStarted parse(const json& b) {
  return {b.contains("recipe") ? string_field(b, "recipe") : ""};
}
template <>
RunStarted parse(const json& b) {
  return {geometry_from_json(object_field(b, "geometry")),
          string_field(b, "build"),
          inputs_from_json(object_field(b, "inputs"))};
}
template <>
Granted parse(const json& b) {
  return {task_field(b),
          uint_field(b, "token"),
          string_field(b, "worker"),
          uint_field(b, "incarnation"),
          string_field(b, "device")};
}
std::optional<TaskId> of_field(const json& b) {
  if (!b.contains("of")) return std::nullopt;
  return task_id_from_string(string_field(b, "of"));
}
template <>
ShardCommitted parse(const json& b) {
  return {uint_field(b, "token"),
          int_field(b, "shard"),
          record_from_json(object_field(b, "file")),
          of_field(b)};
}
template <>
CheckpointCommitted parse(const json& b) {
  return {uint_field(b, "token"),
          int64_field(b, "step"),
          record_from_json(object_field(b, "file")),
          of_field(b)};
}
template <>
TaskDone parse(const json& b) {
  return {uint_field(b, "token"), records_from_json(b, "files"), field(b, "result"), of_field(b)};
}
std::optional<LostSteps> loss_field(const json& b) {
  if (!b.contains("lost_steps")) return std::nullopt;
  const json& lost = object_field(b, "lost_steps");
  return LostSteps{int64_field(lost, "count"), int64_field(lost, "since")};
}
template <>
TaskFailed parse(const json& b) {
  return {uint_field(b, "token"),
          storage::error_kind_from_string(string_field(b, "kind")),
          string_field(b, "message"),
          loss_field(b)};
}
template <>
TaskReleased parse(const json& b) {
  return {uint_field(b, "token"), string_field(b, "reason"), loss_field(b)};
}
template <>
LeaseRevoked parse(const json& b) {
  return {uint_field(b, "token"), string_field(b, "reason"), b.contains("expired"), loss_field(b)};
}
template <>
FileLost parse(const json& b) {
  return {string_field(b, "name"), string_field(b, "reason")};
}
template <>
BoundaryDropped parse(const json& b) {
  return {int_field(b, "boundary")};
}
template <>
LogitsDropped parse(const json&) {
  return {};
}
template <>
Recaptured parse(const json& b) {
  return {task_field(b), string_field(b, "reason")};
}
template <>
Quarantined parse(const json& b) {
  return {task_field(b), string_field(b, "reason")};
}
template <>
Retried parse(const json& b) {
  Retried event{task_field(b), string_field(b, "reason"), std::nullopt};
  if (b.contains("seed")) event.seed = uint_field(b, "seed");
  return event;
}
template <>
Noted parse(const json& b) {
  return {string_field(b, "text")};
}
template <>
RecipeRecorded parse(const json& b) {
  return {string_field(b, "text"),
          b.contains("changes") ? strings_field(b, "changes") : std::vector<std::string>()};
}

template <std::size_t I = 0>
Event parse_as(std::string_view type, const json& body) {
  if constexpr (I == std::variant_size_v<Event>) {
    throw Error(ErrorKind::kCorrupt,
                "journal: unknown event type '" + std::string(type.substr(0, 40)) + "'");
  } else {
    if (type == kTypes[I]) return parse<std::variant_alternative_t<I, Event>>(body);
    return parse_as<I + 1>(type, body);
  }
}

}  // namespace

std::string loss_text(const std::optional<LostSteps>& lost) {
  if (!lost) return "";
  const bool is_one = lost->count == 1;
  return "; " + std::to_string(lost->count) + (is_one ? " step" : " steps") + " since step " +
         std::to_string(lost->since) + (is_one ? " is" : " are") + " done again";
}

std::string_view type_of(const Event& event) { return kTypes[event.index()]; }

json event_to_json(const Event& event) {
  json out = std::visit([](const auto& e) { return body(e); }, event);
  out["type"] = type_of(event);
  return out;
}

Event event_from_json(const json& in) { return parse_as(string_field(in, "type"), in); }

}  // namespace hedgerow::coordinator
