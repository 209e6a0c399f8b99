// What only several nodes together can find out: does a file that one writes show on the others, do
// their clocks agree, do they reach each other. One process a node runs this at the same time, in
// the directory that they share; they meet through files there, so that nothing has to be known of
// the network beforehand. Never throws, as the other checks.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/cli/doctor/doctor.hpp"

namespace hedgerow::coordinator::cli {

struct PeerOptions {
  int num_processes = 2;  // this one included
  // Attribute caches of network file systems show a file late; readers of a run wait as long.
  std::chrono::milliseconds timeout = std::chrono::seconds(90);
  std::chrono::milliseconds look_every = std::chrono::milliseconds(50);
  std::string host;     // of this process, in what it says
  std::string address;  // where the others are to reach it; empty: that is not tried
};

// Blocks until all have met and said so, or timeout is over. Leaves nothing in the directory.
[[nodiscard]] std::vector<Finding> meet_peers(const std::filesystem::path& directory,
                                              const PeerOptions& options);

}  // namespace hedgerow::coordinator::cli
