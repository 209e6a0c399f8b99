#include "coordinator/net/router_socket.hpp"

#include <malloc.h>
#include <sys/resource.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <thread>

#include "coordinator/net/binding.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

// Replies queued for one peer: credit is 1, so more than a few means that it no longer reads.
constexpr int kPeerQueue = 64;
// Connections that the kernel holds until libzmq takes them: all workers of a run may come at once.
constexpr int kBacklog = 4096;
// A peer that says nothing holds its connection no longer than this.
constexpr int kHandshakeMilliseconds = 10000;
constexpr const char* kZapDomain = "hedgerow";
// Refuse when no handler answers for the domain. Declared among libzmq's drafts, but in every build
// of it since 4.3; where it is not, ZapHandler's thread is never silent while the process lives.
constexpr int kZapEnforceDomain = 93;

// libzmq keeps the entries of a connection's pipes in blocks of this size, and one that is given up
// early (worker::kFramesPerConnection) has touched only their first page. As mappings of their own
// they go back to the kernel; in the heap each later connection would touch another page of them.
constexpr int kPipeBlockBytes = 16 << 10;

// A connection is a descriptor, and shells allow 1,024 unless asked.
void allow_many_connections() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  static_cast<void>(::setrlimit(RLIMIT_NOFILE, &limit));
}

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorKind::kUnavailable, what + ": " + zmq_strerror(zmq_errno()));
}

void set(void* socket, int option, int value) {
  if (zmq_setsockopt(socket, option, &value, sizeof value) != 0) fail("zmq_setsockopt");
}

void set(void* socket, int option, const std::string& value) {
  if (zmq_setsockopt(socket, option, value.data(), value.size()) != 0) fail("zmq_setsockopt");
}

// What a frame comes with.
struct Origin {
  bool more = false;          // another one of the same message follows
  std::string user, address;  // the public key its connection was let in with, and the peer's host
};

// One frame of a multipart message. nullopt: EAGAIN or a signal.
std::optional<std::string> receive_frame(void* socket, int flags, Origin& origin) {
  zmq_msg_t message;
  zmq_msg_init(&message);
  if (zmq_msg_recv(&message, socket, flags) < 0) {
    const int error_number = zmq_errno();
    zmq_msg_close(&message);
    if (error_number == EAGAIN || error_number == EINTR) return std::nullopt;
    fail("zmq_msg_recv");
  }
  std::string frame(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
  origin.more = zmq_msg_more(&message) != 0;
  for (auto [property, value] :
       {std::pair("User-Id", &origin.user), {"Peer-Address", &origin.address}}) {
    if (const char* text = zmq_msg_gets(&message, property); text != nullptr) *value = text;
  }
  zmq_msg_close(&message);
  return frame;
}

}  // namespace

struct RouterSocket::Impl {
  void* context = nullptr;
  void* socket = nullptr;
  std::unique_ptr<ZapHandler> zap;  // where there are keys
  std::chrono::milliseconds gather{};
  std::chrono::steady_clock::time_point next_wait{};

  ~Impl() {
    if (socket != nullptr) zmq_close(socket);
    if (context != nullptr) zmq_ctx_shutdown(context);
    zap.reset();  // before the context's end, which waits for its socket
    if (context != nullptr) zmq_ctx_term(context);
  }
};

RouterSocket::RouterSocket(const RouterOptions& options) : impl_(std::make_unique<Impl>()) {
  if (!options.keys && !is_loopback(options.bind)) {
    throw Error(ErrorKind::kUsage,
                "workers.bind = \"" + options.bind + "\" lets other hosts connect, without keys");
  }
  impl_->gather = options.gather;
  allow_many_connections();
  ::mallopt(M_MMAP_THRESHOLD, kPipeBlockBytes);
  impl_->context = zmq_ctx_new();
  if (impl_->context == nullptr) fail("zmq_ctx_new");
  if (options.keys)
    impl_->zap = std::make_unique<ZapHandler>(impl_->context, options.keys->allowed);
  impl_->socket = zmq_socket(impl_->context, ZMQ_ROUTER);
  if (impl_->socket == nullptr) fail("zmq_socket");
  void* const socket = impl_->socket;
  set(socket, ZMQ_LINGER, 0);
  set(socket, ZMQ_ROUTER_MANDATORY, 1);
  set(socket, ZMQ_SNDHWM, kPeerQueue);
  set(socket, ZMQ_SNDTIMEO, 0);
  set(socket, ZMQ_BACKLOG, kBacklog);
  set(socket, ZMQ_HANDSHAKE_IVL, kHandshakeMilliseconds);
  set(socket, ZMQ_IPV6, options.bind.find(':') != std::string::npos ? 1 : 0);
  const std::int64_t cap = static_cast<std::int64_t>(wire::kMaxMessageBytes);
  if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &cap, sizeof cap) != 0) fail("zmq_setsockopt");
  if (options.keys) {
    public_key_ = wire::public_key_of(options.keys->secret_key);
    set(socket, ZMQ_CURVE_SERVER, 1);
    set(socket, ZMQ_CURVE_SECRETKEY, options.keys->secret_key);
    set(socket, ZMQ_ZAP_DOMAIN, std::string(kZapDomain));
    const int enforce = 1;
    static_cast<void>(zmq_setsockopt(socket, kZapEnforceDomain, &enforce, sizeof enforce));
  }
  bind(options);
}

void RouterSocket::bind(const RouterOptions& options) {
  const std::string base = bind_address(options.bind) + ":";
  const auto binds = [&](const std::string& port) {
    return zmq_bind(impl_->socket, (base + port).c_str()) == 0;
  };
  const bool got_one = options.port > 0 ? binds(std::to_string(options.port))
                                        : (options.preferred_port > 0 &&
                                           binds(std::to_string(options.preferred_port))) ||
                                              binds("*");
  if (!got_one) {
    const int error_number = zmq_errno();
    if (options.port > 0 && error_number == EADDRINUSE) {
      throw Error(ErrorKind::kUnavailable,
                  "workers.port = " + std::to_string(options.port) +
                      " is taken by another process ('ss -ltnp' says which); end it, or change it");
    }
    if (error_number == ENODEV || error_number == EINVAL || error_number == EADDRNOTAVAIL) {
      throw Error(ErrorKind::kUsage,
                  "workers.bind = \"" + options.bind +
                      "\": this host has no such address or interface ('ip address' lists them)");
    }
    fail("bind " + base + (options.port > 0 ? std::to_string(options.port) : "*"));
  }
  std::array<char, 256> name{};
  std::size_t size = name.size();
  if (zmq_getsockopt(impl_->socket, ZMQ_LAST_ENDPOINT, name.data(), &size) != 0)
    fail("zmq_getsockopt");
  endpoint_ = advertised_endpoint(name.data(), options.advertise);
}

RouterSocket::~RouterSocket() = default;

std::optional<Mailbox::Incoming> RouterSocket::receive(std::chrono::milliseconds timeout) {
  if (timeout.count() == 0) return receive_now();
  std::this_thread::sleep_until(impl_->next_wait);
  std::optional<Incoming> incoming = receive_now();
  zmq_pollitem_t item{impl_->socket, 0, ZMQ_POLLIN, 0};
  if (!incoming && zmq_poll(&item, 1, static_cast<long>(timeout.count())) > 0)
    incoming = receive_now();
  impl_->next_wait = std::chrono::steady_clock::now() + impl_->gather;
  return incoming;
}

std::optional<Mailbox::Incoming> RouterSocket::receive_now() {
  // A refused message holds up none of those behind it, so this goes on until one is let in.
  for (;;) {
    Origin origin;
    const std::optional<std::string> peer = receive_frame(impl_->socket, ZMQ_DONTWAIT, origin);
    if (!peer) return std::nullopt;
    Incoming incoming{*peer, ""};
    // One frame is the message; surplus ones are of no message of ours, and the decoder refuses
    // what is left.
    for (bool first = true; origin.more; first = false) {
      std::optional<std::string> frame = receive_frame(impl_->socket, 0, origin);
      if (!frame) break;
      if (first) incoming.frame = std::move(*frame);
    }
    incoming.address = std::move(origin.address);
    if (!impl_->zap || impl_->zap->allows(origin.user)) return incoming;
    send(incoming.peer,
         wire::encode(
             wire::Refused{"its public key " + origin.user + " was taken off keys/allowed"}));
  }
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

void RouterSocket::set_allowed(std::set<std::string> allowed) {
  if (impl_->zap) impl_->zap->set_allowed(std::move(allowed));
}

std::vector<RefusedKey> RouterSocket::take_refused() {
  return impl_->zap ? impl_->zap->take_refused() : std::vector<RefusedKey>{};
}

}  // namespace hedgerow::coordinator
