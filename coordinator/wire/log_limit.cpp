#include "coordinator/wire/log_limit.hpp"

namespace hedgerow::wire {
namespace {

constexpr std::chrono::minutes kMinute{1};
constexpr const char* kOthers = "others";

}  // namespace

bool LogLimit::admits(const std::string& subject, Time now) {
  auto found = minutes_.find(subject);
  if (found == minutes_.end()) {
    const bool has_room = minutes_.size() < kSubjectsAMinute;
    found = minutes_.try_emplace(has_room ? subject : kOthers, Minute{now}).first;
  }
  return ++found->second.lines <= kLinesAMinute;
}

std::vector<std::string> LogLimit::left_out(Time now) {
  std::vector<std::string> lines;
  for (auto at = minutes_.begin(); at != minutes_.end();) {
    const auto& [subject, minute] = *at;
    if (now < minute.begin + kMinute) {
      ++at;
      continue;
    }
    if (minute.lines > kLinesAMinute) {
      lines.push_back("left out " + std::to_string(minute.lines - kLinesAMinute) +
                      " more lines about " + subject + " within a minute");
    }
    at = minutes_.erase(at);
  }
  return lines;
}

}  // namespace hedgerow::wire
