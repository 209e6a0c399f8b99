#include "coordinator/doorkeeper.hpp"

#include <unistd.h>

#include <utility>

#include "coordinator/router_socket.hpp"
#include "coordinator/wire/run_keys.hpp"
#include "storage/error.hpp"

namespace hedgerow::coordinator {

Doorkeeper::Doorkeeper(const storage::RunLayout& layout,
                       RouterSocket& socket,
                       const std::atomic<int>* reload_requests)
    : layout_(layout), socket_(socket), reload_requests_(reload_requests) {}

DoorNews Doorkeeper::look() {
  DoorNews news;
  if (socket_.public_key().empty()) return news;
  const int wanted = reload_requests_ == nullptr ? 0 : reload_requests_->load();
  if (wanted != std::exchange(reloads_, wanted)) {
    try {
      socket_.set_allowed(wire::read_allowed_keys(layout_));
      news.notes.emplace_back("keys/allowed was read again");
    } catch (const storage::Error& error) {
      news.warnings.push_back("the workers that may connect are still those of before: " +
                              std::string(error.what()));
    }
  }
  for (const RefusedKey& refused : socket_.take_refused()) {
    news.warnings.push_back("refused a worker at " + refused.address + ": its public key " +
                            refused.key + " is not in " +
                            wire::allowed_keys_file(layout_).string() +
                            "; if it is one of yours, add the key there and send SIGHUP to pid " +
                            std::to_string(::getpid()));
  }
  return news;
}

}  // namespace hedgerow::coordinator
