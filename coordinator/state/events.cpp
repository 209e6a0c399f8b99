#include "coordinator/state/events.hpp"

#include <array>

#include "storage/json/fields.hpp"

namespace hedgerow::coordinator {
namespace {

using nlohmann::json;
using namespace storage;  // the strict field readers
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

}  // namespace

// What stands in the journal of each event; `of` and `lost_steps` are absent in older records.
#define HEDGEROW_EVENT(Type)                       \
  template <typename Visitor, storage::Is<Type> T> \
  void visit_fields([[maybe_unused]] Visitor& visitor, [[maybe_unused]] T& e)

HEDGEROW_EVENT(LostSteps) {
  visitor.field("count", e.count);
  visitor.field("since", e.since);
}
HEDGEROW_EVENT(TermStarted) { visitor.sparse_field("recipe", e.recipe_hash); }
HEDGEROW_EVENT(RunStarted) {
  visitor.field("geometry", e.geometry);
  visitor.field("build", e.build);
  visitor.field("inputs", e.inputs);
}
HEDGEROW_EVENT(Granted) {
  visitor.field("task", e.task);
  visitor.field("token", e.token);
  visitor.field("worker", e.worker);
  visitor.field("incarnation", e.incarnation);
  visitor.field("device", e.device);
}
HEDGEROW_EVENT(ShardCommitted) {
  visitor.field("token", e.token);
  visitor.field("shard", e.shard);
  visitor.field("file", e.file);
  visitor.field("of", e.of);
}
HEDGEROW_EVENT(CheckpointCommitted) {
  visitor.field("token", e.token);
  visitor.field("step", e.step);
  visitor.field("file", e.file);
  visitor.field("of", e.of);
}
HEDGEROW_EVENT(TaskDone) {
  visitor.field("token", e.token);
  visitor.field("files", e.files);
  visitor.field("result", e.result);
  visitor.field("of", e.of);
}
HEDGEROW_EVENT(TaskFailed) {
  visitor.field("token", e.token);
  visitor.field("kind", e.kind);
  visitor.field("message", e.message);
  visitor.field("lost_steps", e.lost);
}
HEDGEROW_EVENT(TaskReleased) {
  visitor.field("token", e.token);
  visitor.field("reason", e.reason);
  visitor.field("lost_steps", e.lost);
}
HEDGEROW_EVENT(LeaseRevoked) {
  visitor.field("token", e.token);
  visitor.field("reason", e.reason);
  visitor.sparse_field("expired", e.expired);
  visitor.field("lost_steps", e.lost);
}
HEDGEROW_EVENT(FileLost) {
  visitor.field("name", e.name);
  visitor.field("reason", e.reason);
}
HEDGEROW_EVENT(BoundaryDropped) { visitor.field("boundary", e.boundary); }
HEDGEROW_EVENT(LogitsDropped) {}
HEDGEROW_EVENT(Recaptured) {
  visitor.field("task", e.task);
  visitor.field("reason", e.reason);
}
HEDGEROW_EVENT(Quarantined) {
  visitor.field("task", e.task);
  visitor.field("reason", e.reason);
}
HEDGEROW_EVENT(Retried) {
  visitor.field("task", e.task);
  visitor.field("reason", e.reason);
  visitor.field("seed", e.seed);
}
HEDGEROW_EVENT(Noted) { visitor.field("text", e.text); }
HEDGEROW_EVENT(RecipeRecorded) {
  visitor.field("text", e.text);
  visitor.sparse_field("changes", e.changes);
}
#undef HEDGEROW_EVENT

namespace {

template <std::size_t I = 0>
Event parse_as(std::string_view type, const json& body) {
  if constexpr (I == std::variant_size_v<Event>) {
    throw Error(ErrorKind::kCorrupt,
                "journal: unknown event type '" + std::string(type.substr(0, 40)) + "'");
  } else {
    if (type == kTypes[I]) return fields_from_json<std::variant_alternative_t<I, Event>>(body);
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
  json out = std::visit([](const auto& e) { return fields_to_json(e); }, event);
  out["type"] = type_of(event);
  return out;
}

Event event_from_json(const json& in) { return parse_as(string_field(in, "type"), in); }

}  // namespace hedgerow::coordinator
