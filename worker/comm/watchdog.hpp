// A deadline for a call that cannot be given up: MPI_Init, MPI_Comm_free and MPI_Finalize wait for
// every rank and take no deadline of their own, nor do ncclCommAbort and ncclCommDestroy. If the
// call has not come back when the time is over, the process says so on stderr and ends with
// ExitCode::kEnvironment, upon which mpirun ends the other ranks. It lives around the call, on the
// calling thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace hedgerow::worker {

class Watchdog {
 public:
  // `call` as the message names it: "rank 0 of 2: MPI_Finalize".
  Watchdog(std::string call, std::chrono::milliseconds deadline);
  ~Watchdog();  // the call came back
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable_any came_back_;
  std::jthread thread_;
};

}  // namespace hedgerow::worker
