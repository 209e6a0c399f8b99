// ZeroMQ's authentication protocol (RFC 27): libzmq asks at inproc://zeromq.zap.01, before a
// connection carries a message, whether a CURVE client's public key may connect. This answers from
// a list. Without it CURVE would let in every client that has made a key pair. It must exist before
// the socket of its context is bound and go after that one is closed; a failure of its thread ends
// the process, because libzmq takes silence for consent.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

namespace hedgerow::coordinator {

struct RefusedKey {
  std::string key;      // public, Z85
  std::string address;  // where it came from
};

class ZapHandler {
 public:
  // `context` is a zmq context; a thread begins that answers on it. Throws kUnavailable.
  ZapHandler(void* context, std::set<std::string> allowed);
  // The context must have been shut down: that ends the thread.
  ~ZapHandler();
  ZapHandler(const ZapHandler&) = delete;
  ZapHandler& operator=(const ZapHandler&) = delete;

  // Any thread, both.
  void set_allowed(std::set<std::string> allowed);
  [[nodiscard]] bool allows(const std::string& key) const;
  // Refused since the last call, a hundred at most; each key once, as long as no more than a
  // hundred others were refused since.
  [[nodiscard]] std::vector<RefusedKey> take_refused();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::coordinator
