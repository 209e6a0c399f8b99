#include "coordinator/wire/messages.hpp"

#include <array>

#include "coordinator/wire/json_fields.hpp"

namespace hedgerow::wire {
namespace {

using nlohmann::json;
using storage::Error;
using storage::ErrorKind;

// Frame: 4 bytes magic, the protocol number as 4 little-endian bytes, JSON.
constexpr std::string_view kMagic = "HGRW";
constexpr std::size_t kHeaderBytes = 8;

// In the order of the variant's alternatives.
constexpr std::array<std::string_view, std::variant_size_v<Message>> kTypes = {"hello",
                                                                               "request",
                                                                               "heartbeat",
                                                                               "checkpointed",
                                                                               "shard_ready",
                                                                               "done",
                                                                               "failed",
                                                                               "released",
                                                                               "goodbye",
                                                                               "welcome",
                                                                               "refused",
                                                                               "who_are_you",
                                                                               "grant",
                                                                               "idle",
                                                                               "heartbeat_ack",
                                                                               "committed",
                                                                               "fenced",
                                                                               "stop"};

json worker_json(const WorkerId& worker) {
  return Object().with("uuid", worker.uuid).with("incarnation", worker.incarnation);
}

WorkerId worker_of(const json& body) {
  const json& worker = object_field(body, "worker");
  return {string_field(worker, "uuid"), uint_field(worker, "incarnation")};
}

// Each message's body, without its type. Fields are the struct's, by their names.
json body(const Hello& m) {
  json out = Object()
                 .with("worker", worker_json(m.worker))
                 .with("version", m.version)
                 .with("build", m.build)
                 .with("host", m.host)
                 .with("device", m.device)
                 .with("pid", m.pid)
                 .with("threads", m.threads)
                 .with("memory_bytes", m.memory_bytes)
                 .with("held_block", m.held_block);
  if (m.held) out["held"] = *m.held;
  return out;
}
json body(const Request& m) {
  return Object().with("worker", worker_json(m.worker)).with("held_block", m.held_block);
}
json body(const Heartbeat& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("progress", m.progress);
}
json body(const Checkpointed& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("file", record_to_json(m.file))
      .with("step", m.step);
}
json body(const ShardReady& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("shard", m.shard)
      .with("file", record_to_json(m.file));
}
json body(const Done& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("files", records_to_json(m.files))
      .with("result", m.result);
}
json body(const Failed& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("kind", storage::to_string(m.kind))
      .with("message", m.message)
      .with("damaged", m.damaged);
}
json body(const Released& m) {
  return Object()
      .with("worker", worker_json(m.worker))
      .with("fencing_token", m.fencing_token)
      .with("reason", m.reason);
}
json body(const Goodbye& m) { return Object().with("worker", worker_json(m.worker)); }
json body(const Welcome& m) {
  return Object()
      .with("term", m.term)
      .with("lease_seconds", m.lease_seconds)
      .with("heartbeat_seconds", m.heartbeat_seconds)
      .with("keeps_task", m.keeps_task);
}
json body(const Refused& m) { return Object().with("reason", m.reason); }
json body(const WhoAreYou& m) { return Object().with("term", m.term); }
json body(const Grant& m) { return Object().with("task", m.task); }
json body(const Idle& m) { return Object().with("retry_milliseconds", m.retry_milliseconds); }
json body(const HeartbeatAck& m) {
  return Object().with("fencing_token", m.fencing_token).with("lease_valid", m.lease_valid);
}
json body(const Committed& m) {
  return Object().with("fencing_token", m.fencing_token).with("name", m.name);
}
json body(const Fenced& m) {
  return Object().with("fencing_token", m.fencing_token).with("reason", m.reason);
}
json body(const Stop& m) { return Object().with("reason", m.reason).with("is_over", m.is_over); }

template <typename T>
T parse(const json& body);

template <>
Hello parse(const json& b) {
  Hello m{.worker = worker_of(b),
          .version = string_field(b, "version"),
          .build = string_field(b, "build"),
          .host = string_field(b, "host"),
          .device = string_field(b, "device"),
          .pid = int_field(b, "pid"),
          .threads = int_field(b, "threads"),
          .memory_bytes = uint_field(b, "memory_bytes"),
          .held = std::nullopt,
          .held_block = int_field(b, "held_block")};
  if (b.contains("held")) m.held = object_field(b, "held").get<Task>();
  return m;
}
template <>
Request parse(const json& b) {
  return {worker_of(b), int_field(b, "held_block")};
}
template <>
Heartbeat parse(const json& b) {
  return {
      worker_of(b), uint_field(b, "fencing_token"), object_field(b, "progress").get<Progress>()};
}
template <>
Checkpointed parse(const json& b) {
  return {worker_of(b),
          uint_field(b, "fencing_token"),
          record_from_json(object_field(b, "file")),
          int64_field(b, "step")};
}
template <>
ShardReady parse(const json& b) {
  return {worker_of(b),
          uint_field(b, "fencing_token"),
          int_field(b, "shard"),
          record_from_json(object_field(b, "file"))};
}
template <>
Done parse(const json& b) {
  const json& result = field(b, "result");
  if (!result.is_object() && !result.is_null()) throw_ill_typed("result", "an object", result);
  return {worker_of(b), uint_field(b, "fencing_token"), records_from_json(b, "files"), result};
}
template <>
Failed parse(const json& b) {
  return {worker_of(b),
          uint_field(b, "fencing_token"),
          storage::error_kind_from_string(string_field(b, "kind")),
          string_field(b, "message"),
          strings_field(b, "damaged")};
}
template <>
Released parse(const json& b) {
  return {worker_of(b), uint_field(b, "fencing_token"), string_field(b, "reason")};
}
template <>
Goodbye parse(const json& b) {
  return {worker_of(b)};
}
template <>
Welcome parse(const json& b) {
  return {uint_field(b, "term"),
          int_field(b, "lease_seconds"),
          int_field(b, "heartbeat_seconds"),
          bool_field(b, "keeps_task")};
}
template <>
Refused parse(const json& b) {
  return {string_field(b, "reason")};
}
template <>
WhoAreYou parse(const json& b) {
  return {uint_field(b, "term")};
}
template <>
Grant parse(const json& b) {
  return {object_field(b, "task").get<Task>()};
}
template <>
Idle parse(const json& b) {
  return {int_field(b, "retry_milliseconds")};
}
template <>
HeartbeatAck parse(const json& b) {
  return {uint_field(b, "fencing_token"), bool_field(b, "lease_valid")};
}
template <>
Committed parse(const json& b) {
  return {uint_field(b, "fencing_token"), string_field(b, "name")};
}
template <>
Fenced parse(const json& b) {
  return {uint_field(b, "fencing_token"), string_field(b, "reason")};
}
template <>
Stop parse(const json& b) {
  return {string_field(b, "reason"), b.contains("is_over") && bool_field(b, "is_over")};
}

template <std::size_t I = 0>
Message parse_as(std::string_view type, const json& body) {
  if constexpr (I == std::variant_size_v<Message>) {
    throw Error(ErrorKind::kCorrupt,
                "message: unknown type '" + std::string(type.substr(0, 40)) + "'");
  } else {
    if (type == kTypes[I]) return parse<std::variant_alternative_t<I, Message>>(body);
    return parse_as<I + 1>(type, body);
  }
}

}  // namespace

std::string_view type_of(const Message& message) { return kTypes[message.index()]; }

std::string encode(const Message& message) {
  json document = std::visit([](const auto& m) { return body(m); }, message);
  document["type"] = type_of(message);
  std::string frame(kMagic);
  for (int shift = 0; shift < 32; shift += 8)
    frame.push_back(static_cast<char>((kProtocol >> shift) & 0xFFU));
  // Worker error texts may quote bytes of damaged files: replace what is not UTF-8 rather than
  // throw.
  frame += document.dump(-1, ' ', false, json::error_handler_t::replace);
  if (frame.size() > kMaxMessageBytes) {
    throw Error(ErrorKind::kInternal,
                "message " + std::string(type_of(message)) + " has " +
                    std::to_string(frame.size()) + " bytes, over the cap of " +
                    std::to_string(kMaxMessageBytes));
  }
  return frame;
}

std::optional<std::uint32_t> protocol_of(std::string_view frame) {
  if (frame.size() < kHeaderBytes || frame.substr(0, kMagic.size()) != kMagic) return std::nullopt;
  std::uint32_t protocol = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    protocol |= static_cast<std::uint32_t>(static_cast<unsigned char>(frame[kMagic.size() + i]))
                << (8 * i);
  }
  return protocol;
}

Message decode(std::string_view frame) {
  if (frame.size() > kMaxMessageBytes) {
    throw Error(ErrorKind::kCorrupt,
                "message of " + std::to_string(frame.size()) + " bytes is over the cap of " +
                    std::to_string(kMaxMessageBytes));
  }
  const std::optional<std::uint32_t> protocol = protocol_of(frame);
  if (!protocol)
    throw Error(ErrorKind::kCorrupt, "message: not a hedgerow frame (magic missing or truncated)");
  if (*protocol != kProtocol) {
    throw Error(ErrorKind::kCorrupt,
                "message: protocol " + std::to_string(*protocol) + ", this build speaks " +
                    std::to_string(kProtocol));
  }
  const json document = parse_document(frame.substr(kHeaderBytes));
  return parse_as(string_field(document, "type"), document);
}

}  // namespace hedgerow::wire
