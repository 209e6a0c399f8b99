// Who may see a run's page: a client that knows the run's secret, which its owner alone can read. A
// browser sends it once, in the address that `hedgerow run` prints, and then as a cookie; a program
// as a bearer token. Host and Origin are checked, so that no other page that is open in the same
// browser reaches it (DNS rebinding, cross-site requests). Pure but for the secret's file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

// The secret of keys/http.secret where the run has keys, else of web.secret in the run directory
// (0600), which is made if it is not there. Throws kUnavailable, kUsage (others may read it).
[[nodiscard]] std::string web_secret(const storage::RunLayout& layout);

// "http://127.0.0.1:8080/" with the secret: what is printed to be opened.
[[nodiscard]] std::string address_to_open(const std::string& address, const std::string& secret);

struct WebRequest {
  std::string_view method{}, target{}, host{}, origin{}, cookie{},
      authorization{};  // absent: empty
};

struct WebAccess {
  std::string secret;
  std::vector<std::string> hosts;  // names of this host that a request may have, without a port
  std::string cookie_name;
};

struct Refusal {
  int status = 0;      // of HTTP
  std::string reason;  // one sentence
};

// The target without its query; "/a?b=c" -> "/a".
[[nodiscard]] std::string_view path_of(std::string_view target);
// A parameter of the target's query, not decoded; empty: absent.
[[nodiscard]] std::string_view parameter_of(std::string_view target, std::string_view name);
// nullopt: it is let in.
[[nodiscard]] std::optional<Refusal> refusal(const WebRequest& request, const WebAccess& access);

}  // namespace hedgerow::coordinator
