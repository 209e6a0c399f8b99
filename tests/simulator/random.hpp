// The one source of chance of a simulation: everything that happens follows from its seed. Not from
// <random>, whose distributions differ between libraries.
#pragma once

#include <chrono>
#include <cstdint>

namespace hedgerow::simulator {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {  // splitmix64
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  std::uint64_t below(std::uint64_t n) { return n == 0 ? 0 : next() % n; }
  std::int64_t between(std::int64_t low, std::int64_t high) {  // both included
    return low + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(high - low + 1)));
  }
  bool chance(double probability) {
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  std::chrono::milliseconds duration(std::chrono::milliseconds low,
                                     std::chrono::milliseconds high) {
    return std::chrono::milliseconds(between(low.count(), high.count()));
  }

 private:
  std::uint64_t state_;
};

}  // namespace hedgerow::simulator
