// What simulated work results in: a number that follows from the numbers it read, in a short text,
// so that a wrong, stale or missing input shows in the artifacts at the end.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/state/geometry.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::simulator {

// What a file holds; equal in every run whatever happened on the way.
[[nodiscard]] std::uint64_t shard_value(int boundary, int shard);
// Values of a piece of logits: before its inputs, and with those that the geometry gives it.
[[nodiscard]] std::uint64_t logits_start(int piece);
[[nodiscard]] std::uint64_t logits_value(const coordinator::Geometry& geometry, int piece);
[[nodiscard]] std::uint64_t artifact_value(int block,
                                           int num_shards,
                                           std::uint64_t seed,
                                           int steps);
[[nodiscard]] std::string file_text(const std::string& kind, std::uint64_t value);
// Nullopt: not a file of that kind, or damaged.
[[nodiscard]] std::optional<std::uint64_t> value_in(const std::string& text,
                                                    const std::string& kind);
[[nodiscard]] storage::FileRecord record_of(const std::string& name, const std::string& text);
[[nodiscard]] std::uint64_t mix(std::uint64_t a, std::uint64_t b);

}  // namespace hedgerow::simulator
