#include "coordinator/net/binding.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <cstring>
#include <string_view>

#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {
namespace {

using storage::Error;
using storage::ErrorKind;

constexpr std::string_view kScheme = "tcp://";

bool is_ipv6(const std::string& host) { return host.find(':') != std::string::npos; }

bool is_loopback_interface(const std::string& name) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return false;
  bool found = false, loopback = true;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (name != entry->ifa_name) continue;
    found = true;
    loopback = loopback && (entry->ifa_flags & IFF_LOOPBACK) != 0;
  }
  ::freeifaddrs(first);
  return found && loopback;
}

bool resolves(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_INET;  // as ZeroMQ looks names up
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

std::string with_brackets(const std::string& host) {
  return is_ipv6(host) ? "[" + host + "]" : host;
}

}  // namespace

bool is_loopback(const std::string& bind) {
  if (bind == "localhost") return true;
  in_addr four{};
  if (::inet_pton(AF_INET, bind.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, bind.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six) != 0;
  return is_loopback_interface(bind);
}

std::optional<std::string> missing_keys(const std::string& bind,
                                        bool has_keys,
                                        const std::string& run) {
  if (has_keys || is_loopback(bind)) return std::nullopt;
  return "workers.bind = \"" + bind + "\" lets other hosts connect, and " + run +
         " has no keys to tell its workers from strangers; make them with 'hedgerow keygen --run " +
         run + "', or bind 127.0.0.1";
}

void require_keys_for(const std::string& bind, bool has_keys, const storage::RunLayout& layout) {
  if (const auto problem = missing_keys(bind, has_keys, layout.root().string()))
    throw Error(ErrorKind::kUsage, *problem);
}

std::string bind_address(const std::string& bind) {
  return std::string(kScheme) + (bind == "localhost" ? "127.0.0.1" : with_brackets(bind));
}

std::string advertised_endpoint(const std::string& bound, const std::string& advertise) {
  const std::size_t colon = bound.rfind(':');
  const std::string host = bound.substr(kScheme.size(), colon - kScheme.size());
  const std::string port = bound.substr(colon);
  if (!advertise.empty()) return std::string(kScheme) + with_brackets(advertise) + port;
  if (host != "0.0.0.0" && host != "[::]") return bound;
  const std::string name = wire::this_host();
  if (!resolves(name)) {
    throw Error(ErrorKind::kUsage,
                "this host calls itself " + name +
                    ", a name that leads to no address, so workers could not find the coordinator; "
                    "set workers.advertise in the recipe to an address of this host");
  }
  return std::string(kScheme) + name + port;
}

}  // namespace hedgerow::coordinator
