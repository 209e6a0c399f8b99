// What a set of simulations has been through, summed over seeds.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/state/state.hpp"

namespace hedgerow::simulator {

struct FaultCount {
  std::uint64_t idle = 0, in_flight = 0;  // with a task granted
};

struct Coverage {
  using Row = std::array<std::uint64_t, coordinator::kNumTaskStates>;
  // How often each event met each state of the task that it is about: the table of
  // coordinator/README.md. A message under a stale token counts where its task is by then.
  std::map<std::string, Row> table;
  std::map<std::string, FaultCount> faults;
  std::map<std::string, std::uint64_t> ends;  // of coordinators, by what ended them
  std::uint64_t runs = 0, events = 0, records = 0, fenced = 0;
  double virtual_hours = 0.0;

  void add(const Coverage& other);
  // Cells that can happen in a run and were not met, as "event at state"; faults that were never
  // injected with a task in flight.
  [[nodiscard]] std::vector<std::string> holes() const;
};

[[nodiscard]] nlohmann::json to_json(const Coverage& coverage);
// For people: the table and the faults.
[[nodiscard]] std::string to_text(const Coverage& coverage);

}  // namespace hedgerow::simulator
