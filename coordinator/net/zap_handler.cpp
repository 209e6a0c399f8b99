#include "coordinator/net/zap_handler.hpp"

#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "coordinator/wire/run_keys.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr const char* kAddress = "inproc://zeromq.zap.01";
constexpr std::size_t kCurveKeyBytes = 32;
// A peer without an allowed key must not fill the memory with keys.
constexpr std::size_t kMaxRefused = 100;

// Frames of a request, RFC 27: version, request id, domain, address, identity, mechanism, and for
// CURVE one credential, the client's public key.
constexpr std::size_t kRequestId = 1, kPeerAddress = 3, kMechanism = 5, kCredential = 6;
constexpr std::size_t kNumFrames = 7;
using Request = std::array<std::string, kNumFrames>;

// False: the context ends. Frames that no request has are dropped.
bool receive(void* socket, Request& request) {
  request = {};
  bool more = true;
  for (std::size_t i = 0; more; ++i) {
    zmq_msg_t message;
    zmq_msg_init(&message);
    int size = -1;
    do size = zmq_msg_recv(&message, socket, 0);
    while (size < 0 && zmq_errno() == EINTR);
    if (size < 0) {
      zmq_msg_close(&message);
      if (zmq_errno() == ETERM) return false;
      throw std::runtime_error(std::string("receiving on ") + kAddress + ": " +
                               zmq_strerror(zmq_errno()));
    }
    if (i < request.size())
      request[i].assign(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
    more = zmq_msg_more(&message) != 0;
    zmq_msg_close(&message);
  }
  return true;
}

// version, request id, status, text, user id, metadata. The user id comes with every message of the
// connection, so that a key taken off the list is heard no more.
void reply(void* socket, const Request& request, bool allowed, const std::string& key) {
  const std::array<std::string, 6> frames = {"1.0",
                                             request[kRequestId],
                                             allowed ? "200" : "400",
                                             allowed ? "OK" : "not on the list",
                                             allowed ? key : "",
                                             ""};
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
    zmq_send(socket, frames[i].data(), frames[i].size(), flags);
  }
}

std::string key_of(const Request& request) {
  if (request[kMechanism] != "CURVE" || request[kCredential].size() != kCurveKeyBytes) return "";
  std::array<char, wire::kKeyCharacters + 1> text{};
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(request[kCredential].data());
  return zmq_z85_encode(text.data(), bytes, kCurveKeyBytes) == nullptr ? "" : text.data();
}

}  // namespace

struct ZapHandler::Impl {
  void* socket = nullptr;
  mutable std::mutex mutex;
  std::set<std::string> allowed;
  std::set<std::string> known_refused;
  std::vector<RefusedKey> refused;
  std::thread thread;

  void loop() noexcept {
    Request request;
    while (receive(socket, request)) {
      const std::string key = key_of(request);
      reply(socket, request, decide(key, request[kPeerAddress]), key);
    }
    zmq_close(socket);
  }

  bool decide(const std::string& key, const std::string& address) {
    const std::lock_guard lock(mutex);
    if (!key.empty() && allowed.contains(key)) return true;
    // Forgotten at once where they are too many, so that one of ours that comes later is told.
    if (known_refused.size() >= kMaxRefused) known_refused.clear();
    if (known_refused.insert(key).second && refused.size() < kMaxRefused)
      refused.push_back({key, address});
    return false;
  }
};

ZapHandler::ZapHandler(void* context, std::set<std::string> allowed)
    : impl_(std::make_unique<Impl>()) {
  impl_->allowed = std::move(allowed);
  impl_->socket = zmq_socket(context, ZMQ_REP);
  if (impl_->socket == nullptr || zmq_bind(impl_->socket, kAddress) != 0) {
    const std::string why = zmq_strerror(zmq_errno());
    if (impl_->socket != nullptr) zmq_close(impl_->socket);
    throw storage::Error(
        storage::ErrorKind::kUnavailable,
        "cannot check the keys of workers: bind " + std::string(kAddress) + ": " + why);
  }
  impl_->thread = std::thread([impl = impl_.get()] { impl->loop(); });
}

ZapHandler::~ZapHandler() { impl_->thread.join(); }

void ZapHandler::set_allowed(std::set<std::string> allowed) {
  const std::lock_guard lock(impl_->mutex);
  impl_->allowed = std::move(allowed);
  // A key that is allowed now and refused later is reported again.
  std::erase_if(impl_->known_refused,
                [this](const std::string& key) { return impl_->allowed.contains(key); });
}

bool ZapHandler::allows(const std::string& key) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->allowed.contains(key);
}

std::vector<RefusedKey> ZapHandler::take_refused() {
  const std::lock_guard lock(impl_->mutex);
  return std::exchange(impl_->refused, {});
}

}  // namespace hedgerow::coordinator
