#include "coordinator/net/allowed_keys_reloader.hpp"

#include <unistd.h>

#include <utility>

#include "coordinator/net/router_socket.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator {

AllowedKeysReloader::AllowedKeysReloader(const storage::RunLayout& layout,
                                         RouterSocket& socket,
                                         const std::atomic<int>* reload_requests)
    : layout_(layout), socket_(socket), reload_requests_(reload_requests) {}

AllowedKeysNews AllowedKeysReloader::look(TimePoint now) {
  AllowedKeysNews news;
  if (socket_.public_key().empty()) return news;
  const auto warn = [&](const std::string& subject, const std::string& warning) {
    if (limit_.admits(subject, now)) news.warnings.push_back(warning);
  };
  const int wanted = reload_requests_ == nullptr ? 0 : reload_requests_->load();
  if (wanted != std::exchange(reloads_, wanted)) {
    try {
      socket_.set_allowed(wire::read_allowed_keys(layout_));
      news.notes.emplace_back("keys/allowed was read again");
    } catch (const storage::Error& error) {
      warn("readings of keys/allowed",
           "the workers that may connect are still those of before: " + std::string(error.what()));
    }
  }
  for (const RefusedKey& refused : socket_.take_refused()) {
    warn("workers with other keys",
         "refused a worker at " + refused.address + ": its public key " + refused.key +
             " is not in " + wire::allowed_keys_file(layout_).string() +
             "; if it is one of yours, add the key there and send SIGHUP to pid " +
             std::to_string(::getpid()));
  }
  for (std::string& line : limit_.left_out(now)) news.warnings.push_back(std::move(line));
  return news;
}

}  // namespace hedgerow::coordinator
