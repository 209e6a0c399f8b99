// The workers that are connected now, as the coordinator's dispatcher knows them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "coordinator/dispatch/speed.hpp"
#include "coordinator/host/clock.hpp"
#include "coordinator/state/task_id.hpp"

namespace hedgerow::coordinator {

// A worker with no more of its hello than is shown, because there may be 10,000.
struct LiveWorker {
  std::string peer;  // as the socket names it
  std::uint64_t incarnation = 0;
  std::string host, device;
  int pid = 0;
  TimePoint last_seen;
  // Speed of the last task that it did: tasks may be shorter than the time between two of its
  // reports.
  std::optional<std::pair<Stage, Speed>> last_speed{};
  std::size_t view = 0;  // its place among those that the scheduler sees
};

// By uuid, in no order: each message asks for its sender, and names are alike for most of their
// length. What walks over all takes the scheduler's list, whose order a seed repeats anywhere.
using LiveWorkers = std::unordered_map<std::string, LiveWorker>;

}  // namespace hedgerow::coordinator
