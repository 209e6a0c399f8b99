#include "tests/simulator/values.hpp"

#include <algorithm>
#include <charconv>
#include <span>

#include "tests/simulator/random.hpp"

namespace hedgerow::simulator {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  return Random(a * 0x100000001b3ULL ^ (b + 0x9e37)).next();
}

std::uint64_t shard_value(int boundary, int shard) {
  std::uint64_t value = static_cast<std::uint64_t>(shard);
  for (int b = 1; b <= boundary; ++b) value = mix(value, static_cast<std::uint64_t>(b));
  return value;
}

std::uint64_t artifact_value(int block, int num_shards, std::uint64_t seed, int steps) {
  std::uint64_t value = mix(seed, static_cast<std::uint64_t>(block));
  for (int shard = 0; shard < num_shards && block > 0; ++shard)
    value = mix(value, shard_value(block, shard));
  for (int step = 0; step < steps; ++step) value = mix(value, static_cast<std::uint64_t>(step));
  return value;
}

std::uint64_t logits_start(int piece) { return mix(33, static_cast<std::uint64_t>(piece)); }

std::uint64_t logits_value(const coordinator::Geometry& geometry, int piece) {
  std::uint64_t value = logits_start(piece);
  const int boundary = geometry.last_boundary();
  if (!geometry.logits_from_boundary || boundary == 0) return value;
  const int first = piece * geometry.shards_per_capture;
  const int end = std::min(first + geometry.shards_per_capture, geometry.num_shards);
  for (int shard = first; shard < end; ++shard) value = mix(value, shard_value(boundary, shard));
  return value;
}

std::string file_text(const std::string& kind, std::uint64_t value) {
  return kind + " " + std::to_string(value) + "\n";
}

std::optional<std::uint64_t> value_in(const std::string& text, const std::string& kind) {
  if (text.rfind(kind + " ", 0) != 0 || text.back() != '\n') return std::nullopt;
  std::uint64_t value = 0;
  const char* end = text.data() + text.size() - 1;
  const auto [stop, error] = std::from_chars(text.data() + kind.size() + 1, end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

storage::FileRecord record_of(const std::string& name, const std::string& text) {
  return {name, text.size(), storage::hash128(std::as_bytes(std::span(text)))};
}

}  // namespace hedgerow::simulator
