// XXH3 hashes of bytes at rest: 128 bit for content (shards, artifacts), 64 bit for journal
// chaining. Not a defence against an adversary; CURVE and file permissions are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace hedgerow::storage {

struct Hash128 {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const Hash128&) const = default;
  [[nodiscard]] std::string hex() const;  // 32 lower-case digits
  [[nodiscard]] static Hash128 from_hex(
      const std::string&);  // Throws kCorrupt if not 32 hex digits.
};

[[nodiscard]] std::uint64_t hash64(std::span<const std::byte> bytes, std::uint64_t seed = 0);
[[nodiscard]] Hash128 hash128(std::span<const std::byte> bytes);
[[nodiscard]] Hash128 hash_file(
    const std::filesystem::path& path);  // whole file; Throws kNotFound, kUnavailable

// Incremental form, for shard root hashes. Not thread-safe.
class Hasher128 {
 public:
  Hasher128();
  ~Hasher128();
  Hasher128(const Hasher128&) = delete;
  Hasher128& operator=(const Hasher128&) = delete;
  Hasher128& update(std::span<const std::byte> bytes);
  Hasher128& update(std::uint64_t value);  // as 8 little-endian bytes
  [[nodiscard]] Hash128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Incremental hash64. Not thread-safe.
class Hasher64 {
 public:
  explicit Hasher64(std::uint64_t seed = 0);
  ~Hasher64();
  Hasher64(const Hasher64&) = delete;
  Hasher64& operator=(const Hasher64&) = delete;
  Hasher64& update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hedgerow::storage
