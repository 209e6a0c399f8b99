// Leases: the time-limited right to a task, timed by the coordinator's monotonic clock alone.
// Granted for a term of 30 s, renewed by heartbeats; a lease whose heartbeats come but whose
// progress stands still for max(120 s, 10 x the median step) is called hung. In memory only: after
// a restart every granted lease gets a full term. Called by the coordinator's loop, after it has
// drained its socket, so that a stalled loop lets no lease expire.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/dispatch/speed.hpp"
#include "coordinator/host/clock.hpp"
#include "coordinator/wire/task.hpp"

namespace hedgerow::coordinator {

struct LeaseTerms {
  std::chrono::milliseconds lease{std::chrono::seconds(30)};
  std::chrono::milliseconds min_progress_timeout{std::chrono::seconds(120)};
};

class Leases {
 public:
  explicit Leases(const Clock& clock, LeaseTerms terms = {}) : clock_(clock), terms_(terms) {}

  // `first_term` replaces the usual term until the first renewal (a process that has yet to start).
  void grant(std::uint64_t token, std::chrono::milliseconds first_term = {});
  void end(std::uint64_t token);
  // False if there is no such lease.
  bool renew(std::uint64_t token);
  [[nodiscard]] bool contains(std::uint64_t token) const { return leases_.count(token) > 0; }
  void note_progress(std::uint64_t token, const wire::Progress& progress);

  struct Ended {
    std::uint64_t token = 0;
    std::string reason;  // "no heartbeat for 30 s", "no progress for 121 s at step 17"
    bool hung = false;   // the process lives and must be restarted
  };
  // Expired or hung now; the caller ends them. Looks at each lease every few seconds, not at all of
  // them each time: a loop asks many times a second.
  [[nodiscard]] std::vector<Ended> due();
  [[nodiscard]] const wire::Progress* progress(
      std::uint64_t token) const;  // null before the first report
  [[nodiscard]] double seconds_since_progress(std::uint64_t token) const;
  [[nodiscard]] std::optional<Speed> speed(std::uint64_t token) const;
  [[nodiscard]] std::chrono::milliseconds progress_timeout(std::uint64_t token) const;

 private:
  static constexpr std::size_t kStepsRemembered = 31;

  struct Lease {
    TimePoint expires;
    TimePoint last_renewal;
    TimePoint last_progress;
    bool reported = false;
    wire::Progress progress;
    SpeedMeter speed;
    // The last ones, in any order: `num_steps` were ever measured.
    std::array<float, kStepsRemembered> step_seconds{};
    std::size_t num_steps = 0;
    TimePoint look_at;  // when to ask next whether it has ended
  };
  [[nodiscard]] std::optional<Ended> ended(std::uint64_t token, const Lease& lease) const;
  void look_later(std::uint64_t token, Lease& lease);

  const Clock& clock_;
  LeaseTerms terms_;
  std::unordered_map<std::uint64_t, Lease> leases_;
  std::set<std::pair<TimePoint, std::uint64_t>> looks_;  // by look_at
};

}  // namespace hedgerow::coordinator
