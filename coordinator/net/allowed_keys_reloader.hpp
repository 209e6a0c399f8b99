// Who may connect, while a run goes on: reads keys/allowed again when it is asked to, and tells
// whom the socket has refused. The coordinator's loop asks it once a turn; it touches nothing else.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "coordinator/host/clock.hpp"
#include "coordinator/wire/log_limit.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

class RouterSocket;

struct AllowedKeysNews {
  std::vector<std::string> notes;     // for the journal
  std::vector<std::string> warnings;  // for people
};

class AllowedKeysReloader {
 public:
  // Both outlive it. `reload_requests` grows with each wish to read the list again (SIGHUP); null:
  // never. Without keys there is never any news.
  AllowedKeysReloader(const storage::RunLayout& layout,
                      RouterSocket& socket,
                      const std::atomic<int>* reload_requests);
  // Never throws for a list that cannot be read: the old one stays in force.
  [[nodiscard]] AllowedKeysNews look(TimePoint now);

 private:
  const storage::RunLayout& layout_;
  RouterSocket& socket_;
  const std::atomic<int>* reload_requests_;
  int reloads_ = 0;  // of them, that were done
  wire::LogLimit limit_;
};

}  // namespace hedgerow::coordinator
