// Philox 4x32-10 (Salmon et al. 2011): counter-based random numbers. A value depends on its key and
// counter alone, so results do not depend on the order of draws, on the block a layer is in, or on
// the machine.
#pragma once

#include <array>
#include <cstdint>

namespace hedgerow::storage {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

[[nodiscard]] PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

// A stream of doubles keyed by (seed, a, b, c); draw i is a pure function of the key and i.
class PhiloxStream {
 public:
  PhiloxStream(std::uint64_t seed, std::uint32_t a, std::uint32_t b, std::uint32_t c);
  double uniform();  // [0, 1), 53 bits
  double normal();   // Box-Muller, one per two uniforms: no cached second value

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
};

}  // namespace hedgerow::storage
