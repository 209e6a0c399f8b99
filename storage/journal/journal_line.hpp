// One line of a journal segment, and the one line of a snapshot: a JSON object whose last member is
// "chain", the XXH3-64 of everything before it, seeded with the chain of the line before.
// Private to storage/journal/journal*.cpp.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/journal/journal.hpp"

namespace hedgerow::storage {

struct JournalLine {
  std::string_view body;    // of the text: up to `,"chain"`
  std::uint64_t chain = 0;  // as the line claims it
};

// Longer ones are none of ours: what comes in has 64 KB.
inline constexpr std::size_t kMaxJournalLineBytes = 1U << 20;

[[nodiscard]] std::string to_hex64(std::uint64_t value);
[[nodiscard]] std::optional<std::uint64_t> from_hex64(std::string_view text);

// nullopt if the text does not end as a line does. Nothing is verified.
[[nodiscard]] std::optional<JournalLine> split_line(std::string_view line);
// The chains that the line after a damaged one may continue, `seeds` being those the damaged one
// may have continued: its claimed chain if only its text is damaged, its true chain if only its
// ending is, the seeds themselves if it never belonged there.
[[nodiscard]] std::vector<std::uint64_t> chains_after_damage(
    std::string_view line, const std::vector<std::uint64_t>& seeds);
[[nodiscard]] std::uint64_t chain_of(std::string_view body, std::uint64_t seed);
// `object` as one line, without the newline; `chain` is the seed before and this line's chain
// after.
[[nodiscard]] std::string seal_line(const nlohmann::ordered_json& object, std::uint64_t& chain);
// The end of a line whose text before it, an object without its closing brace, has this chain.
[[nodiscard]] std::string line_end(std::uint64_t chain);
// The object of a line whose chain was verified. Throws nlohmann's exceptions, kCorrupt (nested too
// deep).
[[nodiscard]] nlohmann::json object_of(const JournalLine& line);

// The terms whose segments lie in the journal's directory, in order. Throws kNotFound.
[[nodiscard]] std::vector<std::uint64_t> terms_in(const std::filesystem::path& directory,
                                                  const Disk& disk);

// What a segment's first line is seeded with; its link to earlier segments is in its seals.
[[nodiscard]] constexpr std::uint64_t first_seed(std::uint64_t term) { return term; }

// Names a damage in the record of the term that settles it. The reason as its hash, because a
// reason may quote damaged bytes, which are not always UTF-8.
[[nodiscard]] nlohmann::json to_settled(const JournalDamage& damage);

[[nodiscard]] nlohmann::json to_seal(const SegmentEnd& end);
[[nodiscard]] SegmentEnd from_seal(const nlohmann::json& seal);  // Throws nlohmann's, kCorrupt.

}  // namespace hedgerow::storage
