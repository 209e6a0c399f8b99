// TCP as far as doctor tries it: listening, connecting, names. Not the wire: no message is sent.
#pragma once

#include <netdb.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {

using AddressInfo = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;
// The first address of a host's name or of a numeric address. Throws kUnavailable.
[[nodiscard]] AddressInfo resolve(const std::string& host, int port, int flags);
// All of a name's, as text; none if it has none.
[[nodiscard]] std::vector<std::string> numeric_addresses(const std::string& host);

// Listens while it lives; whoever connects is let in by the system and never spoken to.
class ListeningSocket {
 public:
  // Port 0: any. Throws kUnavailable.
  ListeningSocket(const std::string& address, int port);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  [[nodiscard]] int port() const { return port_; }

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

// Whether somebody listens there and lets us in before `timeout` is over. False for whatever is in
// the way of that, a name without an address too; never throws.
[[nodiscard]] bool can_connect(const std::string& host,
                               int port,
                               std::chrono::milliseconds timeout);

}  // namespace hedgerow::coordinator::cli
