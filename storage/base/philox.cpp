#include "storage/base/philox.hpp"

#include <cmath>
#include <numbers>

#include "storage/base/error.hpp"

namespace hedgerow::storage {
namespace {

// Multipliers and Weyl increments of Philox 4x32 (Salmon et al. 2011, section 4.2).
constexpr std::uint64_t kMultiplierA = 0xD2511F53;
constexpr std::uint64_t kMultiplierB = 0xCD9E8D57;
constexpr std::uint32_t kWeylA = 0x9E3779B9;
constexpr std::uint32_t kWeylB = 0xBB67AE85;
constexpr int kRounds = 10;

std::uint32_t high_word(std::uint64_t product) { return static_cast<std::uint32_t>(product >> 32); }
std::uint32_t low_word(std::uint64_t product) { return static_cast<std::uint32_t>(product); }

}  // namespace

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t a = kMultiplierA * counter[0];
    const std::uint64_t b = kMultiplierB * counter[2];
    counter = {high_word(b) ^ counter[1] ^ key[0],
               low_word(b),
               high_word(a) ^ counter[3] ^ key[1],
               low_word(a)};
    key = {key[0] + kWeylA, key[1] + kWeylB};
  }
  return counter;
}

PhiloxStream::PhiloxStream(std::uint64_t seed, std::uint32_t a, std::uint32_t b, std::uint32_t c)
    : key_{low_word(seed), high_word(seed)}, counter_{0, a, b, c} {}

double PhiloxStream::uniform() {
  const PhiloxCounter words = philox4x32(counter_, key_);
  if (++counter_[0] == 0)
    throw Error(ErrorKind::kInternal, "a random stream was asked for more than 2^32 - 1 values");
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

double PhiloxStream::normal() {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform()));  // 1 - u is in (0, 1]
  return radius * std::cos(2.0 * std::numbers::pi * uniform());
}

}  // namespace hedgerow::storage
