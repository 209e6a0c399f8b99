// Waiting with a deadline for what a library does in the background: an MPI request, a NCCL
// operation. Both are asked again and again, since neither library waits with a deadline of its
// own.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace hedgerow::worker {

struct Awaited {
  // True: completed. What it throws ends the wait as it is.
  std::function<bool()> is_done;
  // What went wrong so far, asked before is_done; empty: nothing. None: is_done throws.
  std::function<std::string()> failure{};
  // Called at each look; what it throws ends the wait as it is.
  std::function<void()> interrupt{};
  // Called once, with the message, before a failure or a missed deadline is thrown: what is under
  // way will not be waited for again.
  std::function<void(const std::string& why)> give_up;
};

// Returns when it is done. `call` as the message names it: "rank 0 of 2: MPI_Irecv with rank 1".
// Throws storage::Error kUnavailable for a failure and when the deadline passes. On the calling
// thread.
void await_completion(const std::string& call,
                      const Awaited& awaited,
                      std::chrono::milliseconds deadline);

}  // namespace hedgerow::worker
