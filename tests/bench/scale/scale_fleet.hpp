// Many workers in one process: each has its own connection and the production protocol
// (worker/client/coordinator_session.hpp), and instead of computing it waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "storage/files/run_layout.hpp"

namespace hedgerow::bench {

using Time = std::chrono::steady_clock::time_point;

struct FleetOptions {
  int first = 0, count = 0;  // the numbers of these workers
  double task_seconds = 100.0;
  // Workers come evenly over [begin, ramp_end); requests are timed in [measure_from, restart_at);
  // from restart_at on, it is noted how they get on with the next coordinator; then all end.
  Time begin{}, ramp_end{}, measure_from{}, restart_at{}, end{};
};

struct FleetReport {
  std::vector<double> request_milliseconds;  // from the request to its answer
  std::int64_t num_heartbeats = 0;           // in the same time
  int num_working = 0;                       // held a task at restart_at
  int num_lost = 0;                          // leases lost, ever
  int num_welcomed = 0;                      // by the next coordinator
  // Seconds behind restart_at; negative: never.
  double first_grant_seconds = -1.0, last_welcome_seconds = -1.0;
};

// Blocks. Linux only: epoll over the sockets' descriptors.
[[nodiscard]] FleetReport run_fleet(const storage::RunLayout& layout, const FleetOptions& options);

}  // namespace hedgerow::bench
