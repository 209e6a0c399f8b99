// The page of a run: HTTP/1.1 by Boost.Beast on a thread of its own, which reads the run directory
// and nothing of the process that it is in. Read-only. What it serves, and to whom:
// coordinator/web/README.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

struct WebConfig {
  storage::RunLayout layout;
  std::string host = "127.0.0.1";  // an address or a name of this host
  std::uint16_t port = 0;          // 0: any that is free
  std::string secret;              // web_secret()
};

// "HOST:PORT", "[::1]:8080", "8080", "HOST" (any port). Throws kUsage.
struct WebAddress {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
};
[[nodiscard]] WebAddress parse_web_address(const std::string& text);
// The port of "http://127.0.0.1:8080/"; 0: there is none.
[[nodiscard]] std::uint16_t port_of_address(const std::string& address);

// Whether this build has the page (HEDGEROW_WEB). Without it, the constructor, parse_web_address()
// and report_html() throw kUsage.
[[nodiscard]] bool has_web_page();

class WebServer {
 public:
  // Listens when it returns. Throws kUsage: the port is taken, or the address is not of this host.
  explicit WebServer(WebConfig config);
  ~WebServer();  // ends its thread; open streams are told what is new, and cut
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;

  [[nodiscard]] const std::string& address() const;  // "http://127.0.0.1:8080/"

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::coordinator
