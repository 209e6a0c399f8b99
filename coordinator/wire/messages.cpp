#include "coordinator/wire/messages.hpp"

#include <array>

#include "storage/json/fields.hpp"

namespace hedgerow::wire {

// Each message's body, without its type.
template <typename Visitor, storage::Is<Hello> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("version", m.version);
  visitor.field("build", m.build);
  visitor.field("host", m.host);
  visitor.field("device", m.device);
  visitor.field("pid", m.pid);
  visitor.field("threads", m.threads);
  visitor.field("memory_bytes", m.memory_bytes);
  visitor.field("on_gpu", m.on_gpu);
  visitor.field("auto_dtype", m.auto_dtype);
  visitor.field("held", m.held);
  visitor.field("held_block", m.held_block);
}
template <typename Visitor, storage::Is<Request> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("held_block", m.held_block);
}
template <typename Visitor, storage::Is<Heartbeat> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("progress", m.progress);
}
template <typename Visitor, storage::Is<Checkpointed> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("file", m.file);
  visitor.field("step", m.step);
}
template <typename Visitor, storage::Is<ShardReady> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("shard", m.shard);
  visitor.field("file", m.file);
}
template <typename Visitor, storage::Is<Done> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("files", m.files);
  visitor.field("result", m.result);
}
template <typename Visitor, storage::Is<Failed> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("kind", m.kind);
  visitor.field("message", m.message);
  visitor.field("damaged", m.damaged);
}
template <typename Visitor, storage::Is<Released> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("reason", m.reason);
}
template <typename Visitor, storage::Is<Goodbye> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("worker", m.worker);
}
template <typename Visitor, storage::Is<Welcome> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("term", m.term);
  visitor.field("lease_seconds", m.lease_seconds);
  visitor.field("heartbeat_seconds", m.heartbeat_seconds);
  visitor.field("keeps_task", m.keeps_task);
}
template <typename Visitor, storage::Is<Refused> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("reason", m.reason);
}
template <typename Visitor, storage::Is<WhoAreYou> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("term", m.term);
}
template <typename Visitor, storage::Is<Grant> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("task", m.task);
}
template <typename Visitor, storage::Is<Idle> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("retry_milliseconds", m.retry_milliseconds);
}
template <typename Visitor, storage::Is<HeartbeatAck> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("lease_valid", m.lease_valid);
}
template <typename Visitor, storage::Is<Committed> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("name", m.name);
}
template <typename Visitor, storage::Is<Fenced> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("fencing_token", m.fencing_token);
  visitor.field("reason", m.reason);
}
template <typename Visitor, storage::Is<Stop> T>
void visit_fields(Visitor& visitor, T& m) {
  visitor.field("reason", m.reason);
  visitor.optional_field("is_over", m.is_over);
}

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

template <std::size_t I = 0>
Message parse_as(std::string_view type, const json& body) {
  if constexpr (I == std::variant_size_v<Message>) {
    throw Error(ErrorKind::kCorrupt,
                "message: unknown type '" + std::string(type.substr(0, 40)) + "'");
  } else {
    if (type == kTypes[I])
      return storage::fields_from_json<std::variant_alternative_t<I, Message>>(body);
    return parse_as<I + 1>(type, body);
  }
}

}  // namespace

std::string_view type_of(const Message& message) { return kTypes[message.index()]; }

std::string encode(const Message& message) {
  json document = std::visit([](const auto& m) { return storage::fields_to_json(m); }, message);
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
  const json document = storage::parse_document(frame.substr(kHeaderBytes));
  return parse_as(storage::string_field(document, "type"), document);
}

}  // namespace hedgerow::wire
