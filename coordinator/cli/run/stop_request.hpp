// How `stop` reaches the coordinator of a run on whatever machine it is: a file in the run
// directory that the `run` command looks for. No socket and no signal, because the directory is
// what every node shares.
#pragma once

#include <thread>

#include "storage/files/run_layout.hpp"

namespace hedgerow::coordinator::cli {

void request_stop(const storage::RunLayout& layout);
void withdraw_stop(
    const storage::RunLayout& layout);  // before a run starts: an old request is not for it

// Looks for the file twice a second on a thread of its own and interrupts this process once when it
// appears.
class StopWatcher {
 public:
  explicit StopWatcher(const storage::RunLayout& layout);

 private:
  std::jthread thread_;
};

}  // namespace hedgerow::coordinator::cli
