// Wall-clock time for people: journal stamps and status. No decision reads it.
#pragma once

#include <string>

namespace hedgerow::storage {

[[nodiscard]] std::string utc_now();  // "2026-11-21T12:00:00.123Z"
// Seconds since the epoch; 0 if the text is not of that form.
[[nodiscard]] double seconds_of_utc(const std::string& text);
[[nodiscard]] double wall_seconds();

}  // namespace hedgerow::storage
