#include "storage/files/hash.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::size_t kFileBuffer = std::size_t{1} << 20;
constexpr int kDigitsPerWord = 16;

Hash128 from_xxh(const XXH128_hash_t& hash) { return {.high = hash.high64, .low = hash.low64}; }

void append_hex(std::string& text, std::uint64_t word) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(word >> shift) & 0xF];
}

struct XxhState {
  XxhState() {
    if (xxh == nullptr) throw std::bad_alloc();
  }
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> xxh{XXH3_createState()};
};

// -1 for a character that is no hex digit.
int digit_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Hash128::hex() const {
  std::string text;
  append_hex(text, high);
  append_hex(text, low);
  return text;
}

Hash128 Hash128::from_hex(const std::string& text) {
  std::array<std::uint64_t, 2> words{};
  bool good = text.size() == 2 * kDigitsPerWord;
  for (std::size_t i = 0; good && i < text.size(); ++i) {
    const int value = digit_value(text[i]);
    good = value >= 0;
    std::uint64_t& word = words[i / kDigitsPerWord];
    word = word << 4 | static_cast<std::uint64_t>(std::max(value, 0));
  }
  if (!good) {
    throw Error(ErrorKind::kCorrupt, "hash '" + text + "': expected 32 hexadecimal digits");
  }
  return {.high = words[0], .low = words[1]};
}

std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 hash128(std::span<const std::byte> bytes) {
  return from_xxh(XXH3_128bits(bytes.data(), bytes.size()));
}

Hash128 hash_file(const std::filesystem::path& path) {
  const File file = File::open_read(path);
  const std::uint64_t size = file.size();
  std::vector<std::byte> buffer(std::min<std::uint64_t>(size, kFileBuffer));
  Hasher128 hasher;
  for (std::uint64_t offset = 0; offset < size; offset += kFileBuffer) {
    const std::size_t count = std::min<std::uint64_t>(kFileBuffer, size - offset);
    const std::span<std::byte> part = std::span(buffer).first(count);
    file.read_exact(part, offset);
    hasher.update(part);
  }
  return hasher.digest();
}

struct Hasher128::State : XxhState {};
struct Hasher64::State : XxhState {};

Hasher128::Hasher128() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(state_->xxh.get());
}

Hasher128::~Hasher128() = default;

Hasher128& Hasher128::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh.get(), bytes.data(), bytes.size());
  return *this;
}

Hasher128& Hasher128::update(std::uint64_t value) {
  std::array<std::byte, sizeof(value)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(value >> (8 * i));
  }
  return update(std::span<const std::byte>(bytes));
}

Hash128 Hasher128::digest() const { return from_xxh(XXH3_128bits_digest(state_->xxh.get())); }

Hasher64::Hasher64(std::uint64_t seed) : state_(std::make_unique<State>()) {
  XXH3_64bits_reset_withSeed(state_->xxh.get(), seed);
}

Hasher64::~Hasher64() = default;

Hasher64& Hasher64::update(std::span<const std::byte> bytes) {
  XXH3_64bits_update(state_->xxh.get(), bytes.data(), bytes.size());
  return *this;
}

std::uint64_t Hasher64::digest() const { return XXH3_64bits_digest(state_->xxh.get()); }

}  // namespace hedgerow::storage
