// A ZeroMQ ROUTER: the coordinator's one socket. Identities are the library's own (a restarted peer
// can never be shadowed by its old pipe), unknown peers are reported and not silently dropped
// (ROUTER_MANDATORY), messages over the cap cut the connection, and nothing lingers at exit. One
// thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hedgerow::coordinator {

class RouterSocket {
 public:
  // `preferred_port` 0 or taken: any free one. Throws kUsage for an address other than loopback
  // (until connections from other hosts are encrypted and authenticated), kUnavailable.
  RouterSocket(const std::string& address, int preferred_port);
  ~RouterSocket();
  RouterSocket(const RouterSocket&) = delete;
  RouterSocket& operator=(const RouterSocket&) = delete;

  [[nodiscard]] const std::string& endpoint() const {
    return endpoint_;
  }  // "tcp://127.0.0.1:40123"

  struct Incoming {
    std::string peer, frame;
  };
  // nullopt after `patience` without a message. A signal ends the wait early.
  [[nodiscard]] std::optional<Incoming> receive(std::chrono::milliseconds patience);
  // False: the peer is gone or its queue is full; it asks again.
  bool send(const std::string& peer, std::string_view frame);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string endpoint_;
};

}  // namespace hedgerow::coordinator
