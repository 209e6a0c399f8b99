#include "coordinator/cli/doctor/doctor_sockets.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>

#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using AddressInfo = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

// Null if there is none.
AddressInfo resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    found = nullptr;
  return {found, [](addrinfo* info) {
            if (info != nullptr) ::freeaddrinfo(info);
          }};
}

}  // namespace

std::vector<std::string> numeric_addresses(const std::string& host) {
  std::vector<std::string> all;
  const AddressInfo found = resolve(host, 0, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    const int error = ::getnameinfo(
        one->ai_addr, one->ai_addrlen, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    if (error == 0 && std::ranges::find(all, text.data()) == all.end())
      all.emplace_back(text.data());
  }
  return all;
}

ListeningSocket::ListeningSocket(const std::string& address, int port) {
  const AddressInfo info = resolve(address, port, AI_PASSIVE | AI_NUMERICHOST);
  if (info) descriptor_ = ::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  if (descriptor_ >= 0) ::setsockopt(descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  const bool listens = descriptor_ >= 0 &&
                       ::bind(descriptor_, info->ai_addr, info->ai_addrlen) == 0 &&
                       ::listen(descriptor_, SOMAXCONN) == 0 &&
                       ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&bound), &size) == 0;
  if (!listens) {
    const int error = errno;
    if (descriptor_ >= 0) ::close(descriptor_);
    throw storage::system_error("listen at", address + ", port " + std::to_string(port), error);
  }
  // It lies at the same place for both families.
  port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

ListeningSocket::~ListeningSocket() { ::close(descriptor_); }

bool can_connect(const std::string& address, int port) {
  const AddressInfo info = resolve(address, port, AI_NUMERICHOST);
  const int descriptor = info ? ::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;
  if (descriptor < 0) return false;
  const timeval timeout{.tv_sec = 5, .tv_usec = 0};  // Linux: of connect() too
  ::setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
  const bool is_connected = ::connect(descriptor, info->ai_addr, info->ai_addrlen) == 0;
  ::close(descriptor);
  return is_connected;
}

}  // namespace hedgerow::coordinator::cli
