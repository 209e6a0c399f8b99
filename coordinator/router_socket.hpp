// A ZeroMQ ROUTER: the coordinator's one socket. Identities are the library's own (a restarted peer
// can never be shadowed by its old pipe), unknown peers are reported and not silently dropped
// (ROUTER_MANDATORY), messages over the cap cut the connection, and nothing lingers at exit. One
// thread.
#pragma once

#include <memory>
#include <string>

#include "coordinator/mailbox.hpp"

namespace hedgerow::coordinator {

class RouterSocket final : public Mailbox {
 public:
  // `preferred_port` 0 or taken: any free one. Throws kUsage for an address other than loopback
  // (until connections from other hosts are encrypted and authenticated), kUnavailable.
  RouterSocket(const std::string& address, int preferred_port);
  ~RouterSocket() override;
  RouterSocket(const RouterSocket&) = delete;
  RouterSocket& operator=(const RouterSocket&) = delete;

  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] std::optional<Incoming> receive(std::chrono::milliseconds patience) override;
  bool send(const std::string& peer, std::string_view frame) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string endpoint_;
};

}  // namespace hedgerow::coordinator
