// A ZeroMQ ROUTER: the coordinator's one socket. Identities are the library's own (a restarted peer
// can never be shadowed by its old pipe), unknown peers are reported and not silently dropped
// (ROUTER_MANDATORY), messages over the cap cut the connection, and nothing lingers at exit. With
// keys it is a CURVE server that hears only the holders of allowed keys; without them it binds
// loopback addresses alone. One thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/net/mailbox.hpp"
#include "coordinator/net/zap_handler.hpp"
#include "coordinator/wire/run_keys.hpp"

namespace hedgerow::coordinator {

struct RouterOptions {
  std::string bind = "127.0.0.1";  // workers.bind of a recipe
  std::string advertise{};         // workers.advertise
  int port = 0;                    // workers.port: this one or none; 0: any
  int preferred_port = 0;          // where port is 0; 0 or taken: any free one
  std::optional<wire::CoordinatorKeys> keys{};
  // Waking up costs more than reading a message: libzmq's thread, ours, and a round of the run's
  // loop. What comes within this after a wait has ended is read together.
  std::chrono::milliseconds gather{2};
};

class RouterSocket final : public Mailbox {
 public:
  // Throws kUsage for an address that other hosts reach without keys, or that this host has not;
  // kUnavailable.
  explicit RouterSocket(const RouterOptions& options);
  ~RouterSocket() override;
  RouterSocket(const RouterSocket&) = delete;
  RouterSocket& operator=(const RouterSocket&) = delete;

  // As workers connect to it: "tcp://127.0.0.1:40123", "tcp://node7:40123".
  [[nodiscard]] const std::string& endpoint() const override { return endpoint_; }
  [[nodiscard]] const std::string& public_key() const { return public_key_; }  // empty: no CURVE
  // Waits no sooner than `gather` after the last wait ended, so that `timeout` may be exceeded by
  // as much; with 0 it never waits. What comes over a connection whose key is not allowed any more
  // is answered with `refused` and never returned.
  [[nodiscard]] std::optional<Incoming> receive(std::chrono::milliseconds timeout) override;
  bool send(const std::string& peer, std::string_view frame) override;

  // Nothing without keys.
  void set_allowed(std::set<std::string> allowed);
  [[nodiscard]] std::vector<RefusedKey> take_refused();

 private:
  void bind(const RouterOptions& options);
  [[nodiscard]] std::optional<Incoming> receive_now();

  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string endpoint_, public_key_;
};

}  // namespace hedgerow::coordinator
