#include "worker/client/dealer_socket.hpp"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

constexpr int kQueue = 64;
// A coordinator that was stopped in the middle of a handshake is tried again after this.
constexpr int kHandshakeMilliseconds = 10000;
// Between attempts to reach a coordinator that is away: each twice as long as the one before, and
// (in libzmq 4.3.4) a random part of the first more. 10,000 workers that tried every 0.15 s,
// libzmq's default, took 1.2 of the two cores that the next coordinator was to start on.
constexpr int kFirstRetryMilliseconds = 250, kLastRetryMilliseconds = 1000;
// A coordinator that dies closes connections too, but not so often in a row.
constexpr int kMaxClosed = 5;
constexpr int kWatched = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                         ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;

[[noreturn]] void fail(const std::string& what) {
  throw storage::Error(storage::ErrorKind::kUnavailable, what + ": " + zmq_strerror(zmq_errno()));
}

void set(void* socket, int option, int value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) != 0) fail("zmq_setsockopt");
}

void set(void* socket, int option, const std::string& value) {
  if (zmq_setsockopt(socket, option, value.data(), value.size()) != 0) fail("zmq_setsockopt");
}

struct Event {
  std::uint16_t number = 0;
  std::uint32_t value = 0;
};

// The next of a socket's monitor; nullopt: none waits. Its second frame, the address, is dropped.
std::optional<Event> next_event(void* monitor) {
  zmq_msg_t message;
  zmq_msg_init(&message);
  std::optional<Event> event;
  if (zmq_msg_recv(&message, monitor, ZMQ_DONTWAIT) >= 0 &&
      zmq_msg_size(&message) >= sizeof(std::uint16_t) + sizeof(std::uint32_t)) {
    const auto* bytes = static_cast<const char*>(zmq_msg_data(&message));
    event.emplace();
    std::memcpy(&event->number, bytes, sizeof event->number);
    std::memcpy(&event->value, bytes + sizeof event->number, sizeof event->value);
  }
  while (zmq_msg_more(&message) != 0 && zmq_msg_recv(&message, monitor, ZMQ_DONTWAIT) >= 0) {
  }
  zmq_msg_close(&message);
  return event;
}

}  // namespace

std::string configure_dealer(void* socket,
                             const std::string& endpoint,
                             const std::optional<wire::WorkerKeys>& keys) {
  // Long enough for a goodbye to leave, short enough that an exit never hangs on a dead peer.
  set(socket, ZMQ_LINGER, 200);
  set(socket, ZMQ_SNDHWM, kQueue);
  set(socket, ZMQ_RCVHWM, kQueue);
  set(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds);
  set(socket, ZMQ_RECONNECT_IVL, kFirstRetryMilliseconds);
  set(socket, ZMQ_RECONNECT_IVL_MAX, kLastRetryMilliseconds);
  set(socket, ZMQ_IPV6, endpoint.find('[') != std::string::npos ? 1 : 0);
  const std::int64_t cap = static_cast<std::int64_t>(wire::kMaxMessageBytes);
  if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &cap, sizeof cap) != 0) fail("zmq_setsockopt");
  if (!keys) return "";
  const std::string public_key = wire::public_key_of(keys->secret_key);
  set(socket, ZMQ_CURVE_SERVERKEY, keys->server_key);
  set(socket, ZMQ_CURVE_SECRETKEY, keys->secret_key);
  set(socket, ZMQ_CURVE_PUBLICKEY, public_key);
  return public_key;
}

struct DealerSocket::Impl {
  void* context = zmq_ctx_new();
  void* socket = nullptr;
  void* monitor = nullptr;
  std::uint64_t num_monitors = 0;
  int num_closed = 0;  // handshakes in a row
  bool was_connected = false, is_reconnected = false;
  std::optional<HandshakeFailure> failure;
  int wake_descriptor = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

  ~Impl() {
    close();
    if (context != nullptr) zmq_ctx_term(context);
    if (wake_descriptor >= 0) ::close(wake_descriptor);
  }

  void close() {
    if (monitor != nullptr) zmq_close(monitor);
    if (socket != nullptr) zmq_close(socket);
    monitor = socket = nullptr;
  }

  // Our public key, if there are keys.
  std::string connect(const std::string& endpoint, const std::optional<wire::WorkerKeys>& keys) {
    close();
    was_connected = is_reconnected = false;
    num_closed = 0;
    failure.reset();
    socket = zmq_socket(context, ZMQ_DEALER);
    if (socket == nullptr) fail("zmq_socket");
    const std::string public_key = configure_dealer(socket, endpoint, keys);
    watch();
    if (zmq_connect(socket, endpoint.c_str()) != 0) fail("connect " + endpoint);
    return public_key;
  }

  void watch() {
    const std::string address = "inproc://monitor-" + std::to_string(++num_monitors);
    if (zmq_socket_monitor(socket, address.c_str(), kWatched) != 0) fail("zmq_socket_monitor");
    monitor = zmq_socket(context, ZMQ_PAIR);
    if (monitor == nullptr) fail("zmq_socket");
    set(monitor, ZMQ_LINGER, 0);
    if (zmq_connect(monitor, address.c_str()) != 0) fail("connect " + address);
  }

  void take_events() {
    while (const std::optional<Event> event = next_event(monitor)) {
      switch (event->number) {
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
          is_reconnected = std::exchange(was_connected, true);
          num_closed = 0;
          failure.reset();
          break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
          failure = HandshakeFailure::kKeyRefused;
          break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
          if (event->value == ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
            failure = HandshakeFailure::kMechanism;
          break;
        case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:  // the value is errno
          if (event->value != EPIPE && event->value != ECONNRESET) break;
          if (++num_closed >= kMaxClosed && !failure) failure = HandshakeFailure::kClosed;
          break;
        default:
          break;
      }
    }
  }
};

DealerSocket::DealerSocket(const std::string& endpoint, std::optional<wire::WorkerKeys> keys)
    : impl_(std::make_unique<Impl>()), endpoint_(endpoint) {
  if (impl_->context == nullptr || impl_->wake_descriptor < 0) fail("zmq_ctx_new");
  public_key_ = impl_->connect(endpoint, keys);
}

DealerSocket::~DealerSocket() = default;

void DealerSocket::reconnect(const std::string& endpoint, std::optional<wire::WorkerKeys> keys) {
  public_key_ = impl_->connect(endpoint, keys);
  endpoint_ = endpoint;
}

std::optional<HandshakeFailure> DealerSocket::failure() const { return impl_->failure; }

bool DealerSocket::take_reconnected() { return std::exchange(impl_->is_reconnected, false); }

std::optional<std::string> DealerSocket::receive(std::chrono::milliseconds timeout) {
  std::array<zmq_pollitem_t, 3> items{{{impl_->socket, 0, ZMQ_POLLIN, 0},
                                       {nullptr, impl_->wake_descriptor, ZMQ_POLLIN, 0},
                                       {impl_->monitor, 0, ZMQ_POLLIN, 0}}};
  if (zmq_poll(items.data(), static_cast<int>(items.size()), static_cast<long>(timeout.count())) <=
      0)
    return std::nullopt;
  if ((items[2].revents & ZMQ_POLLIN) != 0) impl_->take_events();
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
