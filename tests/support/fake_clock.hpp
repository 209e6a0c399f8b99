// A clock that moves when it is told to.
#pragma once

#include "coordinator/host/clock.hpp"

namespace hedgerow::coordinator {

class FakeClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(std::chrono::milliseconds by) { now_ += by; }

 private:
  TimePoint now_{std::chrono::hours(1)};
};

}  // namespace hedgerow::coordinator
