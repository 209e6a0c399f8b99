#include "storage/base/utc.hpp"

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>

namespace hedgerow::storage {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = static_cast<std::time_t>(milliseconds / 1000);
  std::tm broken{};
  ::gmtime_r(&seconds, &broken);
  std::array<char, 40> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &broken);
  std::snprintf(
      text.data() + length, text.size() - length, ".%03dZ", static_cast<int>(milliseconds % 1000));
  return text.data();
}

double seconds_of_utc(const std::string& text) {
  std::tm broken{};
  double seconds = 0.0;
  if (std::sscanf(text.c_str(),
                  "%d-%d-%dT%d:%d:%lfZ",
                  &broken.tm_year,
                  &broken.tm_mon,
                  &broken.tm_mday,
                  &broken.tm_hour,
                  &broken.tm_min,
                  &seconds) != 6) {
    return 0.0;
  }
  broken.tm_year -= 1900;
  broken.tm_mon -= 1;
  return static_cast<double>(::timegm(&broken)) + seconds;
}

}  // namespace hedgerow::storage
