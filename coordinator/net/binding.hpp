// Which address the coordinator listens at, and by which name others find it: workers.bind and
// workers.advertise of a recipe. Called by `hedgerow run` before anything is written and by
// RouterSocket.
#pragma once

#include <optional>
#include <string>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

// Whether only processes of this host reach what is bound there: 127.0.0.0/8, ::1, localhost, or a
// loopback interface's name. "*", 0.0.0.0 and every unknown word are not.
[[nodiscard]] bool is_loopback(const std::string& bind);

// What to say if other hosts would reach the coordinator and `has_keys` is false: any process that
// connects could take and give tasks. `run`: as the user names its directory. nullopt: nothing is
// missing.
[[nodiscard]] std::optional<std::string> missing_keys(const std::string& bind,
                                                      bool has_keys,
                                                      const std::string& run);
// Throws that as kUsage.
void require_keys_for(const std::string& bind, bool has_keys, const storage::RunLayout& layout);

// "tcp://ADDRESS", without the port, as ZeroMQ binds it: brackets around IPv6, localhost as an
// address.
[[nodiscard]] std::string bind_address(const std::string& bind);

// `bound` is what ZeroMQ says that it listens at ("tcp://0.0.0.0:40123"). The same with the host
// that others use: `advertise`, or else this host's name if `bound` means all addresses. Throws
// kUsage if that name leads nowhere from here.
[[nodiscard]] std::string advertised_endpoint(const std::string& bound,
                                              const std::string& advertise);

}  // namespace hedgerow::coordinator
