// Ranks as threads of one process, with a mailbox for each (source, destination, tag): what tests
// of communicators, of the last stage and of generation by ranks run in place of MPI.
#pragma once

#include <chrono>
#include <functional>

#include "worker/comm/communicator.hpp"

namespace hedgerow::worker {

// Runs body(communicator) on world_size threads; rethrows the first exception after all have ended.
// A rank that ends by an exception is a lost peer to the others at once.
void run_on_threads(int world_size,
                    const std::function<void(Communicator&)>& body,
                    std::chrono::milliseconds deadline = kCommDeadline);

}  // namespace hedgerow::worker
