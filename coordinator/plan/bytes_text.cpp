#include "coordinator/plan/bytes_text.hpp"

#include <array>
#include <cstdio>

namespace hedgerow::coordinator {

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"kB", "MB", "GB", "TB", "PB"};
  if (bytes < 1000) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1000.0;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000.0;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(
      text.data(), text.size(), value < 99.95 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace hedgerow::coordinator
