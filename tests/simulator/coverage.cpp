#include "tests/simulator/coverage.hpp"

#include <cstdio>
#include <set>

namespace hedgerow::simulator {
namespace {

using coordinator::TaskState;

constexpr std::array<TaskState, coordinator::kNumTaskStates> kStates = {TaskState::kPending,
                                                                        TaskState::kGranted,
                                                                        TaskState::kDone,
                                                                        TaskState::kDropped,
                                                                        TaskState::kQuarantined};

// The cells of coordinator/README.md that are not "rejected": what a run can come to.
const std::map<std::string, std::set<TaskState>>& possible_cells() {
  static const std::set<TaskState> all(kStates.begin(), kStates.end());
  static const std::map<std::string, std::set<TaskState>> cells = {
      {"granted", {TaskState::kPending}},
      {"shard_committed", all},
      {"checkpointed", all},
      {"done", all},
      {"failed", all},
      {"released", all},
      {"revoked", {TaskState::kGranted}},  // under a stale token: never said by a coordinator
      {"lost",
       {TaskState::kPending, TaskState::kGranted, TaskState::kDone, TaskState::kQuarantined}},
      {"dropped", {TaskState::kDone, TaskState::kDropped}},
      {"recaptured", {TaskState::kDropped}},
      {"quarantined", {TaskState::kPending}},
      {"retried", {TaskState::kPending, TaskState::kQuarantined}}};
  return cells;
}

// Cells whose event is of stages that cannot be in that state.
bool is_out_of_reach(const std::string& event, TaskState state) {
  // Only captures are dropped, and they have neither checkpoints nor other files.
  return state == TaskState::kDropped && event == "checkpointed";
}

}  // namespace

void Coverage::add(const Coverage& other) {
  for (const auto& [event, row] : other.table) {
    for (std::size_t state = 0; state < row.size(); ++state) table[event][state] += row[state];
  }
  for (const auto& [fault, count] : other.faults) {
    faults[fault].idle += count.idle;
    faults[fault].in_flight += count.in_flight;
  }
  for (const auto& [how, count] : other.ends) ends[how] += count;
  runs += other.runs;
  events += other.events;
  records += other.records;
  fenced += other.fenced;
  virtual_hours += other.virtual_hours;
}

std::vector<std::string> Coverage::holes() const {
  std::vector<std::string> list;
  for (const auto& [event, states] : possible_cells()) {
    const auto row = table.find(event);
    for (const TaskState state : states) {
      if (is_out_of_reach(event, state)) continue;
      if (row == table.end() || row->second[static_cast<std::size_t>(state)] == 0)
        list.push_back(event + " at " + std::string(coordinator::to_string(state)));
    }
  }
  for (const auto& [fault, count] : faults) {
    if (count.in_flight == 0) list.push_back(fault + " with a task in flight");
  }
  return list;
}

nlohmann::json to_json(const Coverage& coverage) {
  nlohmann::json table = nlohmann::json::object(), faults = nlohmann::json::object();
  for (const auto& [event, row] : coverage.table) {
    for (const TaskState state : kStates)
      table[event][std::string(coordinator::to_string(state))] =
          row[static_cast<std::size_t>(state)];
  }
  for (const auto& [fault, count] : coverage.faults)
    faults[fault] = {{"idle", count.idle}, {"in_flight", count.in_flight}};
  return {{"runs", coverage.runs},
          {"events", coverage.events},
          {"records", coverage.records},
          {"fenced", coverage.fenced},
          {"virtual_hours", coverage.virtual_hours},
          {"table", table},
          {"faults", faults},
          {"coordinators_ended", coverage.ends},
          {"holes", coverage.holes()}};
}

std::string to_text(const Coverage& coverage) {
  std::string text;
  std::array<char, 160> line{};
  const auto add = [&](auto... arguments) {
    std::snprintf(line.data(), line.size(), arguments...);
    text += line.data();
  };
  add("%-16s", "event");
  for (const TaskState state : kStates) add("%13s", std::string(to_string(state)).c_str());
  for (const auto& [event, row] : coverage.table) {
    add("\n%-16s", event.c_str());
    for (const std::uint64_t count : row) add("%13llu", static_cast<unsigned long long>(count));
  }
  add("\n\n%-34s%13s%13s", "fault", "in flight", "idle");
  for (const auto& [fault, count] : coverage.faults) {
    add("\n%-34s%13llu%13llu",
        fault.c_str(),
        static_cast<unsigned long long>(count.in_flight),
        static_cast<unsigned long long>(count.idle));
  }
  add("\n\n%-34s%13s", "a coordinator ended by", "times");
  for (const auto& [how, count] : coverage.ends)
    add("\n%-34s%13llu", how.c_str(), static_cast<unsigned long long>(count));
  return text + "\n";
}

}  // namespace hedgerow::simulator
