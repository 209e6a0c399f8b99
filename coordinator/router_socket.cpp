#include "coordinator/router_socket.hpp"

#include <zmq.h>

#include <array>
#include <cerrno>

#include "coordinator/wire/messages.hpp"
#include "storage/error.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

// Replies queued for one peer: credit is 1, so more than a few means that it no longer reads.
constexpr int kPeerQueue = 64;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::kUnavailable, what + ": " + zmq_strerror(zmq_errno()));
}

void set(void* socket, int option, int value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) != 0) fail("zmq_setsockopt");
}

// One frame of a multipart message; `more` says whether another follows. nullopt: EAGAIN or a
// signal.
std::optional<std::string> receive_frame(void* socket, int flags, bool& more) {
  zmq_msg_t message;
  zmq_msg_init(&message);
  if (zmq_msg_recv(&message, socket, flags) < 0) {
    const int error_number = zmq_errno();
    zmq_msg_close(&message);
    if (error_number == EAGAIN || error_number == EINTR) return std::nullopt;
    fail("zmq_msg_recv");
  }
  std::string frame(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
  more = zmq_msg_more(&message) != 0;
  zmq_msg_close(&message);
  return frame;
}

}  // namespace

struct RouterSocket::Impl {
  void* context = nullptr;
  void* socket = nullptr;

  ~Impl() {
    if (socket != nullptr) zmq_close(socket);
    if (context != nullptr) zmq_ctx_term(context);
  }
};

RouterSocket::RouterSocket(const std::string& address, int preferred_port)
    : impl_(std::make_unique<Impl>()) {
  const bool loopback = address == "localhost" || address == "::1" || address.rfind("127.", 0) == 0;
  if (!loopback) {
    throw Error(ErrorKind::kUsage,
                "workers.bind = \"" + address +
                    "\": connections from other hosts are neither encrypted nor authenticated "
                    "in this version, so only loopback addresses are bound; use 127.0.0.1 and an "
                    "ssh tunnel");
  }
  impl_->context = zmq_ctx_new();
  if (impl_->context == nullptr) fail("zmq_ctx_new");
  impl_->socket = zmq_socket(impl_->context, ZMQ_ROUTER);
  if (impl_->socket == nullptr) fail("zmq_socket");
  set(impl_->socket, ZMQ_LINGER, 0);
  set(impl_->socket, ZMQ_ROUTER_MANDATORY, 1);
  set(impl_->socket, ZMQ_SNDHWM, kPeerQueue);
  set(impl_->socket, ZMQ_SNDTIMEO, 0);
  const std::int64_t cap = static_cast<std::int64_t>(wire::kMaxMessageBytes);
  if (zmq_setsockopt(impl_->socket, ZMQ_MAXMSGSIZE, &cap, sizeof cap) != 0) fail("zmq_setsockopt");
  const std::string base = "tcp://" + address + ":";
  const bool got_preferred =
      preferred_port > 0 &&
      zmq_bind(impl_->socket, (base + std::to_string(preferred_port)).c_str()) == 0;
  if (!got_preferred && zmq_bind(impl_->socket, (base + "*").c_str()) != 0)
    fail("bind " + base + "*");
  std::array<char, 256> name{};
  std::size_t size = name.size();
  if (zmq_getsockopt(impl_->socket, ZMQ_LAST_ENDPOINT, name.data(), &size) != 0)
    fail("zmq_getsockopt");
  endpoint_ = name.data();
}

RouterSocket::~RouterSocket() = default;

std::optional<Mailbox::Incoming> RouterSocket::receive(std::chrono::milliseconds patience) {
  zmq_pollitem_t item{impl_->socket, 0, ZMQ_POLLIN, 0};
  if (zmq_poll(&item, 1, static_cast<long>(patience.count())) <= 0) return std::nullopt;
  bool more = false;
  const std::optional<std::string> peer = receive_frame(impl_->socket, ZMQ_DONTWAIT, more);
  if (!peer) return std::nullopt;
  Incoming incoming{*peer, ""};
  // One frame is the message; surplus ones are of no message of ours, and the decoder refuses what
  // is left.
  for (bool first = true; more; first = false) {
    std::optional<std::string> frame = receive_frame(impl_->socket, 0, more);
    if (!frame) break;
    if (first) incoming.frame = std::move(*frame);
  }
  return incoming;
}

bool RouterSocket::send(const std::string& peer, std::string_view frame) {
  const auto sent = [this](std::string_view bytes, int flags) {
    return zmq_send(impl_->socket, bytes.data(), bytes.size(), flags | ZMQ_DONTWAIT) >= 0;
  };
  if (sent(peer, ZMQ_SNDMORE) && sent(frame, 0)) return true;
  const int error_number = zmq_errno();
  if (error_number == EHOSTUNREACH || error_number == EAGAIN || error_number == EINTR) return false;
  fail("zmq_send");
}

}  // namespace hedgerow::coordinator
