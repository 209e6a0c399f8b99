#include "coordinator/dispatch/leases.hpp"

#include <algorithm>
#include <limits>

namespace hedgerow::coordinator {
namespace {

using std::chrono::milliseconds;

constexpr double kMediansAllowed = 10.0;
constexpr std::chrono::seconds kLookAtLeasesEvery{5};

double seconds_between(TimePoint from, TimePoint to) {
  return std::chrono::duration<double>(to - from).count();
}

bool advanced(const wire::Progress& before, const wire::Progress& now) {
  return before.phase != now.phase || before.step != now.step || before.tokens != now.tokens;
}

}  // namespace

void Leases::grant(std::uint64_t token, milliseconds first_term) {
  const TimePoint now = clock_.now();
  Lease lease;
  lease.expires = now + (first_term.count() > 0 ? first_term : terms_.lease);
  lease.last_renewal = now;
  lease.last_progress = now;
  end(token);
  look_later(token, leases_[token] = std::move(lease));
}

void Leases::end(std::uint64_t token) {
  const auto found = leases_.find(token);
  if (found == leases_.end()) return;
  looks_.erase({found->second.look_at, token});
  leases_.erase(found);
}

// A renewal only puts the end off, and is seen at the next look; what brings it nearer (faster
// steps) is seen as late as kLookAtLeasesEvery.
void Leases::look_later(std::uint64_t token, Lease& lease) {
  looks_.erase({lease.look_at, token});
  lease.look_at = std::min(lease.expires, clock_.now() + kLookAtLeasesEvery);
  // Its median is asked for only when the hang is near.
  if (lease.reported && lease.look_at - lease.last_progress >= terms_.min_progress_timeout)
    lease.look_at = std::min(lease.look_at, lease.last_progress + progress_timeout(token));
  looks_.insert({lease.look_at, token});
}

bool Leases::renew(std::uint64_t token) {
  const auto found = leases_.find(token);
  if (found == leases_.end()) return false;
  const TimePoint now = clock_.now();
  found->second.last_renewal = now;
  found->second.expires = now + terms_.lease;  // also nearer: what starts has come up
  return true;
}

void Leases::note_progress(std::uint64_t token, const wire::Progress& progress) {
  const auto found = leases_.find(token);
  if (found == leases_.end()) return;
  Lease& lease = found->second;
  const TimePoint now = clock_.now();
  const std::int64_t steps = progress.step - lease.progress.step;
  if (lease.reported && steps > 0) {
    const double mean = seconds_between(lease.last_progress, now) / static_cast<double>(steps);
    lease.step_seconds[lease.num_steps++ % kStepsRemembered] = static_cast<float>(mean);
  }
  if (!lease.reported || advanced(lease.progress, progress)) lease.last_progress = now;
  lease.reported = true;
  lease.progress = progress;
  lease.speed.note(progress);
}

milliseconds Leases::progress_timeout(std::uint64_t token) const {
  const Lease& lease = leases_.at(token);
  const std::size_t num_steps = std::min(lease.num_steps, kStepsRemembered);
  if (num_steps == 0) return terms_.min_progress_timeout;
  std::array<float, kStepsRemembered> steps = lease.step_seconds;
  float* const middle = steps.data() + num_steps / 2;
  std::nth_element(steps.data(), middle, steps.data() + num_steps);
  const milliseconds by_steps(
      static_cast<std::int64_t>(kMediansAllowed * static_cast<double>(*middle) * 1000.0));
  return std::max(terms_.min_progress_timeout, by_steps);
}

std::optional<Leases::Ended> Leases::ended(std::uint64_t token, const Lease& lease) const {
  const TimePoint now = clock_.now();
  const auto whole = [now](TimePoint since) {
    return std::to_string(static_cast<int>(seconds_between(since, now)));
  };
  if (now >= lease.expires)
    return Ended{token, "no heartbeat for " + whole(lease.last_renewal) + " s", false};
  const auto silence = now - lease.last_progress;
  const bool is_hung = lease.reported && silence >= terms_.min_progress_timeout &&
                       silence >= progress_timeout(token);
  if (!is_hung) return std::nullopt;
  return Ended{token,
               "no progress for " + whole(lease.last_progress) + " s, " + lease.progress.phase +
                   " at step " + std::to_string(lease.progress.step),
               true};
}

std::vector<Leases::Ended> Leases::due() {
  std::vector<std::uint64_t> looked_at;
  const std::pair last{clock_.now(), std::numeric_limits<std::uint64_t>::max()};
  for (auto look = looks_.begin(); look != looks_.end() && *look <= last; ++look)
    looked_at.push_back(look->second);
  std::vector<Ended> all;
  for (const std::uint64_t token : looked_at) {
    Lease& lease = leases_.at(token);
    if (std::optional<Ended> one = ended(token, lease)) {
      all.push_back(std::move(*one));
    } else {
      look_later(token, lease);
    }
  }
  return all;
}

const wire::Progress* Leases::progress(std::uint64_t token) const {
  const auto found = leases_.find(token);
  return found == leases_.end() || !found->second.reported ? nullptr : &found->second.progress;
}

double Leases::seconds_since_progress(std::uint64_t token) const {
  const auto found = leases_.find(token);
  return found == leases_.end() ? 0.0 : seconds_between(found->second.last_progress, clock_.now());
}

std::optional<Speed> Leases::speed(std::uint64_t token) const {
  const auto found = leases_.find(token);
  return found == leases_.end() ? std::nullopt : found->second.speed.speed();
}

}  // namespace hedgerow::coordinator
