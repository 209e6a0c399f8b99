#include "worker/dealer_socket.hpp"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "coordinator/wire/messages.hpp"
#include "storage/error.hpp"

namespace hedgerow::worker {
namespace {

constexpr int kQueue = 64;

[[noreturn]] void fail(const std::string& what) {
  throw storage::Error(storage::ErrorKind::kUnavailable, what + ": " + zmq_strerror(zmq_errno()));
}

void set(void* socket, int option, int value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) != 0) fail("zmq_setsockopt");
}

}  // namespace

struct DealerSocket::Impl {
  void* context = zmq_ctx_new();
  void* socket = nullptr;
  int wake_descriptor = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

  ~Impl() {
    if (socket != nullptr) zmq_close(socket);
    if (context != nullptr) zmq_ctx_term(context);
    if (wake_descriptor >= 0) ::close(wake_descriptor);
  }

  void connect(const std::string& endpoint) {
    if (socket != nullptr) zmq_close(socket);
    socket = zmq_socket(context, ZMQ_DEALER);
    if (socket == nullptr) fail("zmq_socket");
    // Long enough for a goodbye to leave, short enough that an exit never hangs on a dead peer.
    set(socket, ZMQ_LINGER, 200);
    set(socket, ZMQ_SNDHWM, kQueue);
    set(socket, ZMQ_RCVHWM, kQueue);
    const std::int64_t cap = static_cast<std::int64_t>(wire::kMaxMessageBytes);
    if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &cap, sizeof cap) != 0) fail("zmq_setsockopt");
    if (zmq_connect(socket, endpoint.c_str()) != 0) fail("connect " + endpoint);
  }
};

DealerSocket::DealerSocket(const std::string& endpoint)
    : impl_(std::make_unique<Impl>()), endpoint_(endpoint) {
  if (impl_->context == nullptr || impl_->wake_descriptor < 0) fail("zmq_ctx_new");
  impl_->connect(endpoint);
}

DealerSocket::~DealerSocket() = default;

void DealerSocket::reconnect(const std::string& endpoint) {
  impl_->connect(endpoint);
  endpoint_ = endpoint;
}

std::optional<std::string> DealerSocket::receive(std::chrono::milliseconds patience) {
  std::array<zmq_pollitem_t, 2> items{
      {{impl_->socket, 0, ZMQ_POLLIN, 0}, {nullptr, impl_->wake_descriptor, ZMQ_POLLIN, 0}}};
  if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(patience.count())) <=
      0)
    return std::nullopt;
  if ((items[1].revents & ZMQ_POLLIN) != 0) {
    std::uint64_t count = 0;
    static_cast<void>(!::read(impl_->wake_descriptor, &count, sizeof count));
  }
  if ((items[0].revents & ZMQ_POLLIN) == 0) return std::nullopt;
  zmq_msg_t message;
  zmq_msg_init(&message);
  std::optional<std::string> frame;
  if (zmq_msg_recv(&message, impl_->socket, ZMQ_DONTWAIT) >= 0) {
    frame.emplace(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
  }
  zmq_msg_close(&message);
  return frame;
}

void DealerSocket::send(std::string_view frame) {
  if (zmq_send(impl_->socket, frame.data(), frame.size(), ZMQ_DONTWAIT) >= 0) return;
  if (zmq_errno() != EAGAIN && zmq_errno() != EINTR) fail("zmq_send");
}

void DealerSocket::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(impl_->wake_descriptor, &one, sizeof one));
}

}  // namespace hedgerow::worker
