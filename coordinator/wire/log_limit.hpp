// Keeps a log short whatever a peer, a file or a loop repeats: about one subject ("messages from
// 10.0.0.7") at most kLinesAMinute lines a minute are said, and how many there were beside them is
// said once that minute is over. Unknown peers can make up subjects: of more than kSubjectsAMinute
// the rest share one. The caller passes the time, and asks for left_out() again and again. One
// thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hedgerow::wire {

class LogLimit {
 public:
  using Time = std::chrono::steady_clock::time_point;
  static constexpr int kLinesAMinute = 3;
  static constexpr std::size_t kSubjectsAMinute = 16;

  // Whether a line about `subject` may be said; one that may not is counted.
  [[nodiscard]] bool admits(const std::string& subject, Time now);
  // A line for each subject of which lines were left out in a minute that is over by now.
  // Time::max(): of all that were not told yet.
  [[nodiscard]] std::vector<std::string> left_out(Time now);

 private:
  struct Minute {
    Time begin;
    std::int64_t lines = 0;
  };
  std::map<std::string, Minute> minutes_;  // by subject; of those that spoke last minute
};

}  // namespace hedgerow::wire
