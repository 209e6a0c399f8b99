#include "coordinator/cli/doctor/doctor_sockets.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace hedgerow::coordinator::cli {

AddressInfo resolve(const std::string& host, int port, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw storage::Error(storage::ErrorKind::kUnavailable,
                         "the name " + host + " has no address: " + ::gai_strerror(error));
  }
  return {found, ::freeaddrinfo};
}

std::vector<std::string> numeric_addresses(const std::string& host) {
  std::vector<std::string> all;
  try {
    const AddressInfo found = resolve(host, 0, 0);
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      std::array<char, NI_MAXHOST> text{};
      if (::getnameinfo(one->ai_addr,
                        one->ai_addrlen,
                        text.data(),
                        text.size(),
                        nullptr,
                        0,
                        NI_NUMERICHOST) != 0)
        continue;
      if (std::ranges::find(all, text.data()) == all.end()) all.emplace_back(text.data());
    }
  } catch (const storage::Error&) {
    return {};
  }
  return all;
}

ListeningSocket::ListeningSocket(const std::string& address, int port) {
  const AddressInfo info = resolve(address, port, AI_PASSIVE);
  descriptor_ = ::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
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
    throw storage::Error(storage::ErrorKind::kUnavailable,
                         "cannot listen at " + address +
                             (port > 0 ? ", port " + std::to_string(port) : "") + ": " +
                             std::strerror(error));
  }
  // It lies at the same place for both families.
  port_ = ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

ListeningSocket::~ListeningSocket() { ::close(descriptor_); }

bool can_connect(const std::string& host, int port, std::chrono::milliseconds timeout) {
  try {
    const AddressInfo info = resolve(host, port, 0);
    const int descriptor = ::socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (descriptor < 0) return false;
    bool is_connected = ::connect(descriptor, info->ai_addr, info->ai_addrlen) == 0;
    if (!is_connected && errno == EINPROGRESS) {
      pollfd event{descriptor, POLLOUT, 0};
      int error = 0;
      socklen_t size = sizeof error;
      is_connected = ::poll(&event, 1, static_cast<int>(timeout.count())) == 1 &&
                     ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
                     error == 0;
    }
    ::close(descriptor);
    return is_connected;
  } catch (const storage::Error&) {
    return false;
  }
}

}  // namespace hedgerow::coordinator::cli
