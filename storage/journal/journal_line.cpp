#include "storage/journal/journal_line.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <span>

#include "storage/base/error.hpp"
#include "storage/files/hash.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::string_view kChainKey = ",\"chain\":\"";
constexpr std::string_view kLineEnd = "\"}";
constexpr std::size_t kHexDigits = 16;
constexpr std::size_t kSuffix = kChainKey.size() + kHexDigits + kLineEnd.size();
// More than a few candidates only arise from garbage.
constexpr std::size_t kMaxSeeds = 8;
constexpr std::size_t kMaxDepth = 64;  // a result is at most 16 deep when it comes in

}  // namespace

std::string to_hex64(std::uint64_t value) {
  std::array<char, kHexDigits + 1> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

std::optional<std::uint64_t> from_hex64(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, kHexDigits);
  // One spelling only: a flipped bit that turns a digit into its capital must not pass.
  if (error != std::errc() || to_hex64(value) != text) return std::nullopt;
  return value;
}

std::optional<JournalLine> split_line(std::string_view line) {
  if (line.size() <= kSuffix || !line.ends_with(kLineEnd)) return std::nullopt;
  const std::string_view suffix = line.substr(line.size() - kSuffix);
  if (!suffix.starts_with(kChainKey)) return std::nullopt;
  const auto chain = from_hex64(suffix.substr(kChainKey.size(), kHexDigits));
  if (!chain) return std::nullopt;
  return JournalLine{.body = line.substr(0, line.size() - kSuffix), .chain = *chain};
}

std::vector<std::uint64_t> chains_after_damage(std::string_view line,
                                               const std::vector<std::uint64_t>& seeds) {
  std::vector<std::uint64_t> chains;
  if (line.size() > kSuffix) {
    const std::size_t body_size = line.size() - kSuffix;
    const auto claimed = from_hex64(line.substr(body_size + kChainKey.size(), kHexDigits));
    if (claimed) chains.push_back(*claimed);
    for (const std::uint64_t seed : seeds)
      chains.push_back(chain_of(line.substr(0, body_size), seed));
  }
  chains.insert(chains.end(), seeds.begin(), seeds.end());
  chains.resize(std::min(chains.size(), kMaxSeeds));
  return chains;
}

std::uint64_t chain_of(std::string_view body, std::uint64_t seed) {
  return hash64(std::as_bytes(std::span(body)), seed);
}

std::string seal_line(const nlohmann::ordered_json& object, std::uint64_t& chain) {
  // Bytes that are not UTF-8 (a path, a worker's message) must not keep a record from being
  // written.
  std::string text = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.pop_back();
  chain = chain_of(text, chain);
  text += line_end(chain);
  return text;
}

std::string line_end(std::uint64_t chain) {
  return std::string(kChainKey).append(to_hex64(chain)).append(kLineEnd);
}

nlohmann::json object_of(const JournalLine& line) {
  if (is_nested_deeper(line.body, kMaxDepth))
    throw Error(ErrorKind::kCorrupt, "nested deeper than " + std::to_string(kMaxDepth) + " levels");
  return nlohmann::json::parse(std::string(line.body) + "}");
}

nlohmann::json to_settled(const JournalDamage& damage) {
  const std::uint64_t reason = hash64(std::as_bytes(std::span(damage.reason)));
  return {{"term", damage.term}, {"line", damage.line}, {"reason", to_hex64(reason)}};
}

nlohmann::json to_seal(const SegmentEnd& end) {
  return {{"term", end.term}, {"bytes", end.bytes}, {"chain", to_hex64(end.chain)}};
}

SegmentEnd from_seal(const nlohmann::json& seal) {
  const auto chain = from_hex64(seal.at("chain").get<std::string>());
  if (!chain)
    throw Error(ErrorKind::kCorrupt, "journal: the chain of a seal is not 16 hexadecimal digits");
  return {.term = integer_of<std::uint64_t>(seal, "term"),
          .bytes = integer_of<std::uint64_t>(seal, "bytes"),
          .chain = *chain};
}

}  // namespace hedgerow::storage
