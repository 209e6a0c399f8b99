// How frames reach the coordinator and leave it. The real one is a socket (router_socket.hpp), the
// simulator's a network that loses, doubles and delays. One thread.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace hedgerow::coordinator {

class Mailbox {
 public:
  virtual ~Mailbox() = default;

  [[nodiscard]] virtual const std::string& endpoint() const = 0;  // "tcp://127.0.0.1:40123"

  struct Incoming {
    std::string peer, frame;
    std::string address{};  // "10.0.0.7", of the host that it came from; empty: unknown
  };
  // nullopt after `timeout`, or a little more, without a message; 0 looks only. A signal ends the
  // wait early.
  [[nodiscard]] virtual std::optional<Incoming> receive(std::chrono::milliseconds timeout) = 0;
  // False: the peer is gone or its queue is full; it asks again.
  virtual bool send(const std::string& peer, std::string_view frame) = 0;
};

}  // namespace hedgerow::coordinator
