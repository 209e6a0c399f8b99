// The wait for workers before a run begins whose workers all come from elsewhere and are in no
// cluster file. What they are decides what the recipe leaves open (dtype, k, boundaries to keep).
// The coordinator listens where they look for it and answers no worker; a worker says hello again
// until it is welcomed.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/net/mailbox.hpp"
#include "coordinator/status/status.hpp"
#include "coordinator/wire/messages.hpp"
#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator {

struct WorkersAwaited {
  const storage::RunLayout& layout;
  Mailbox& mailbox;
  std::string public_key{};
  // Workers are started one after the other: it ends when none has come for so long.
  std::chrono::milliseconds settle{3000};
  const std::atomic<int>* stop_requests = nullptr;
  // Hears what is published: that the run waits, and where workers find it.
  std::function<void(const RunStatus&)> on_status{};
};

// The first hello of each worker; none: it was asked to stop. Writes coordinator.json and
// logs/status.json.
[[nodiscard]] std::vector<wire::Hello> await_workers(const WorkersAwaited& call);

// The dtype that all of them multiply fast.
[[nodiscard]] std::string common_dtype(const std::vector<wire::Hello>& hellos);

}  // namespace hedgerow::coordinator
