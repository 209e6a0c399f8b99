#include "worker/comm/await.hpp"

#include <thread>

#include "storage/base/error.hpp"

namespace hedgerow::worker {
namespace {

[[noreturn]] void give_up(const Awaited& awaited, const std::string& message) {
  awaited.give_up(message);
  throw storage::Error(storage::ErrorKind::kUnavailable, message);
}

}  // namespace

void await_completion(const std::string& call,
                      const Awaited& awaited,
                      std::chrono::milliseconds deadline) {
  const auto begin = std::chrono::steady_clock::now();
  // A short spin for the latency of small messages, then sleeps: ranks that wait must leave the
  // cores to those that compute.
  constexpr int kSpins = 200;
  constexpr std::chrono::microseconds kNap{50};
  for (int turn = 0;; ++turn) {
    if (awaited.failure) {
      const std::string failure = awaited.failure();
      if (!failure.empty()) give_up(awaited, call + " failed: " + failure);
    }
    if (awaited.is_done()) return;
    if (awaited.interrupt) awaited.interrupt();
    if (std::chrono::steady_clock::now() - begin > deadline) {
      give_up(awaited,
              call + " did not complete within " + std::to_string(deadline.count()) +
                  " ms: the peer is lost or stopped");
    }
    if (turn >= kSpins) std::this_thread::sleep_for(kNap);
  }
}

}  // namespace hedgerow::worker
