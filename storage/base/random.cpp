#include "storage/base/random.hpp"

#include <sys/random.h>

#include <cerrno>
#include <vector>

#include "storage/base/error.hpp"

namespace hedgerow::storage {

std::string random_hex(std::size_t bytes) {
  std::vector<unsigned char> drawn(bytes);
  for (std::size_t at = 0; at < bytes;) {  // a signal may cut a draw of over 256 bytes short
    const ssize_t got = ::getrandom(drawn.data() + at, bytes - at, 0);
    if (got < 0 && errno != EINTR) throw system_error("draw", "random bytes", errno);
    if (got > 0) at += static_cast<std::size_t>(got);
  }
  std::string text;
  for (const unsigned char byte : drawn) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 0xF];
  }
  return text;
}

}  // namespace hedgerow::storage
