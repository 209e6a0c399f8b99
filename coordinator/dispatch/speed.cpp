#include "coordinator/dispatch/speed.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr double kWindowSeconds = 60.0;

}  // namespace

std::optional<Speed> speed_of(const nlohmann::json& result) {
  const auto number = [&result](const char* key) {
    const auto found = result.is_object() ? result.find(key) : result.end();
    return found != result.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const double steps = number("steps"), tokens_per_second = number("tokens_per_second");
  if (tokens_per_second <= 0.0) return std::nullopt;
  return Speed{steps > 0.0 ? number("seconds") / steps : 0.0, tokens_per_second};
}

void SpeedMeter::note(const wire::Progress& report) {
  if (report.phase == "loading") return;
  const Point point{report.seconds, report.step, report.tokens};
  if (before_.step < 0) before_ = middle_ = now_ = point;
  if (point.step <= now_.step) return;  // seconds of a step that is not finished tell nothing
  now_ = point;
  if (now_.seconds - middle_.seconds < kWindowSeconds) return;
  before_ = middle_;
  middle_ = now_;
}

std::optional<Speed> SpeedMeter::speed() const {
  const double seconds = now_.seconds - before_.seconds;
  const auto steps = static_cast<double>(now_.step - before_.step);
  if (steps <= 0.0 || seconds <= 0.0) return std::nullopt;
  return Speed{seconds / steps, static_cast<double>(now_.tokens - before_.tokens) / seconds};
}

}  // namespace hedgerow::coordinator
