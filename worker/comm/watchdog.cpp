#include "worker/comm/watchdog.hpp"

#include <cstdio>
#include <cstdlib>

#include "storage/base/error.hpp"

namespace hedgerow::worker {

Watchdog::Watchdog(std::string call, std::chrono::milliseconds deadline)
    : thread_([this, call = std::move(call), deadline](const std::stop_token& token) {
        std::unique_lock lock(mutex_);
        came_back_.wait_for(lock, token, deadline, [] { return false; });
        if (token.stop_requested()) return;
        std::fprintf(stderr,
                     "hedgerow-worker: %s did not complete within %lld ms: a peer is lost or "
                     "stopped; this rank ends without it\n",
                     call.c_str(),
                     static_cast<long long>(deadline.count()));
        std::fflush(nullptr);
        // Not exit(): destructors would call the library that is stuck.
        std::_Exit(static_cast<int>(storage::ExitCode::kEnvironment));
      }) {}

// The thread is joined by its destructor, which asks it to stop first.
Watchdog::~Watchdog() = default;

}  // namespace hedgerow::worker
