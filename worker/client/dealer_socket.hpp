// A ZeroMQ DEALER that another thread can wake: CoordinatorClient's thread waits on it. It tells a
// handshake that the other side refused from one that got no answer; libzmq alone reports neither.
// All but wake() from one thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::worker {

enum class HandshakeFailure {
  kKeyRefused,  // the coordinator's list has not our public key
  kMechanism,   // one side has CURVE, the other has not
  kClosed,      // several times without a reason, as a CURVE server does that has another key pair
};

// What each connection of a worker to its coordinator goes by, on `socket`, a DEALER of libzmq that
// is not connected yet. Returns our public key, empty without keys. Throws kUnavailable.
std::string configure_dealer(void* socket,
                             const std::string& endpoint,
                             const std::optional<wire::WorkerKeys>& keys);

class DealerSocket {
 public:
  // Connects by CURVE if there are keys. Throws kUsage (no keys at all), kUnavailable.
  explicit DealerSocket(const std::string& endpoint, std::optional<wire::WorkerKeys> keys = {});
  ~DealerSocket();
  DealerSocket(const DealerSocket&) = delete;
  DealerSocket& operator=(const DealerSocket&) = delete;

  [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
  [[nodiscard]] const std::string& public_key() const { return public_key_; }  // ours; may be empty
  // What was queued for the old one is dropped.
  void reconnect(const std::string& endpoint, std::optional<wire::WorkerKeys> keys);
  // nullopt: nothing within `timeout`, or woken.
  [[nodiscard]] std::optional<std::string> receive(std::chrono::milliseconds timeout);
  void send(std::string_view frame);  // dropped when the queue is full: the caller repeats it
  void wake();                        // any thread

  // How the handshake failed since the last (re)connect; libzmq tries no more after the first two.
  [[nodiscard]] std::optional<HandshakeFailure> failure() const;
  // True once after each time that a lost connection was made again.
  [[nodiscard]] bool take_reconnected();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string endpoint_, public_key_;
};

}  // namespace hedgerow::worker
