// TCP as far as doctor tries it: listening, connecting, names. Not the wire: no message is sent.
#pragma once

#include <string>
#include <vector>

namespace hedgerow::coordinator::cli {

// All of a name's, as text; none if it has none.
[[nodiscard]] std::vector<std::string> numeric_addresses(const std::string& host);

// Listens while it lives. The system accepts connections; nothing is ever sent to them.
class ListeningSocket {
 public:
  // A numeric address; port 0: any. Throws kUnavailable.
  ListeningSocket(const std::string& address, int port);
  ~ListeningSocket();
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  [[nodiscard]] int port() const { return port_; }

 private:
  int descriptor_ = -1;
  int port_ = 0;
};

// Whether a connection to that numeric address is accepted within five seconds.
[[nodiscard]] bool can_connect(const std::string& address, int port);

}  // namespace hedgerow::coordinator::cli
