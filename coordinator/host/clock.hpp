// Time as the coordinator sees it: monotonic, and behind an interface so that leases can be tested
// without waiting. Wall clocks appear only in what people read; no decision looks at one.
#pragma once

#include <chrono>
#include <string>

#include "storage/base/utc.hpp"

namespace hedgerow::coordinator {

using TimePoint = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
  // The wall clock, for stamps.
  [[nodiscard]] virtual std::string utc() const { return storage::utc_now(); }
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace hedgerow::coordinator
