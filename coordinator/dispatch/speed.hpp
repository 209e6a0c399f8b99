// How fast an attempt works, by what it reports of itself: the steps between two of its reports, at
// least one and at most two minutes apart, and the seconds that it counted for them. Loading is no
// work.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>

#include "coordinator/wire/task.hpp"

namespace hedgerow::coordinator {

struct Speed {
  double seconds_per_step = 0.0;
  double tokens_per_second = 0.0;  // 0: it counts none
  bool operator==(const Speed&) const = default;
};

// Speed of a whole attempt, loading included, by its result (coordinator/README.md "Results"),
// which is its worker's own: nullopt if it does not say.
[[nodiscard]] std::optional<Speed> speed_of(const nlohmann::json& result);

class SpeedMeter {
 public:
  void note(const wire::Progress& report);
  // nullopt before its second report, and while none of its steps was finished between two.
  [[nodiscard]] std::optional<Speed> speed() const;

 private:
  struct Point {
    double seconds = 0.0;
    std::int64_t step = -1, tokens = 0;  // -1: nothing was reported
  };
  Point before_, middle_, now_;  // measured from before_; middle_ takes its place some day
};

}  // namespace hedgerow::coordinator
