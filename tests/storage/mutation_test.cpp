// Seeded mutations of what is parsed before anything is trusted: the safetensors header and the
// shard header. Nothing may crash (run under the asan preset too), and what is accepted must keep
// the promises of the parser's header.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/shards/shard_header.hpp"
#include "storage/tensors/safetensors_header.hpp"
#include "tests/support/shard_fixture.hpp"

namespace hedgerow::storage {
namespace {

constexpr int kMutations = 10'000;
constexpr std::uint32_t kSeed = 20260;

class Mutator {
 public:
  explicit Mutator(std::uint32_t seed) : random_(seed) {}

  std::size_t below(std::size_t bound) { return bound == 0 ? 0 : random_() % bound; }

  // One to four edits of the kinds that break parsers: bits, bytes, cuts, repeats, and words of the
  // grammar out of place.
  std::string mutate(std::string text) {
    static const std::vector<std::string> kWords{"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\u0000",
                                                 "\\ud800",
                                                 "null",
                                                 "true",
                                                 "-1",
                                                 "-0",
                                                 "1e3",
                                                 "0.5",
                                                 "\"dtype\"",
                                                 "\"shape\"",
                                                 "\"data_offsets\"",
                                                 "\"__metadata__\"",
                                                 "\"F32\"",
                                                 "\"BF16\"",
                                                 "\"U8\"",
                                                 "18446744073709551615",
                                                 "18446744073709551616",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "4294967296",
                                                 "[[",
                                                 "{}",
                                                 "\xff",
                                                 std::string(1, '\0'),
                                                 "\n",
                                                 "99999999999999999999999"};
    for (std::size_t edits = 1 + below(4); edits > 0; --edits) {
      const std::size_t at = below(text.size() + 1);
      const std::size_t count = below(std::min<std::size_t>(text.size() - at, 24) + 1);
      switch (below(6)) {
        case 0:
          if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:
          if (at < text.size()) text[at] = static_cast<char>(random_());
          break;
        case 2:
          text.erase(at, count);
          break;
        case 3:
          text.insert(at, text.substr(at, count));
          break;
        case 4:
          text.insert(at, kWords[below(kWords.size())]);
          break;
        default:
          text.replace(at, std::min(count, text.size() - at), kWords[below(kWords.size())]);
      }
    }
    return text;
  }

 private:
  std::mt19937 random_;
};

// True: accepted. Any exception but our own fails the test.
template <typename Parse>
bool accepts(const Parse& parse, const std::string& input, int mutation) {
  try {
    parse(input);
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(error.kind() == ErrorKind::kCorrupt || error.kind() == ErrorKind::kUsage)
        << error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "seed " << kSeed << ", mutation " << mutation << ": " << error.what() << "\n"
                  << input;
  }
  return false;
}

TEST(Mutation, SafetensorsHeadersNeverCrashAndAcceptedOnesCoverTheirBufferExactly) {
  const std::string good =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},"c":{"dtype":"U8","shape":[],"data_offsets":[32,33]}}  )";
  static constexpr std::uint64_t kBuffer = 33;
  Mutator mutator(kSeed);
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    const auto parse = [](const std::string& text) {
      const SafetensorsHeader header = parse_safetensors_header(text, kBuffer, "m.safetensors");
      std::uint64_t covered = 0;
      for (const auto& [name, entry] : header.tensors) {
        ASSERT_LE(entry.begin, entry.end) << text;
        ASSERT_LE(entry.end, kBuffer) << text;
        std::uint64_t bytes = size_of(entry.dtype);
        for (const std::int64_t dimension : entry.shape)
          bytes *= static_cast<std::uint64_t>(dimension);
        ASSERT_EQ(bytes, entry.end - entry.begin) << text;
        covered += bytes;
      }
      // The rest belongs to tensors of types that are not read.
      ASSERT_LE(covered, kBuffer) << text;
      ASSERT_TRUE(covered == kBuffer || !header.unread.empty()) << text;
    };
    accepted += accepts(parse, i == 0 ? good : mutator.mutate(good), i) ? 1 : 0;
  }
  EXPECT_GT(accepted, kMutations / 100)
      << "mutations too wild to reach what lies behind the syntax";
  EXPECT_LT(accepted, kMutations / 2);
}

TEST(Mutation, SafetensorsLengthsNeverLeaveTheFile) {
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < kMutations; ++i) {
    std::string bytes(8, '\0');
    const std::uint64_t value = random() >> (random() % 64);
    for (std::size_t k = 0; k < 8; ++k) bytes[k] = static_cast<char>(value >> (8 * k));
    const std::uint64_t file_bytes = random() >> (random() % 64);
    const auto parse = [&](const std::string& text) {
      const std::uint64_t length = safetensors_header_length(text, file_bytes, "m.safetensors");
      ASSERT_EQ(length, value);
      ASSERT_LE(length, kMaxSafetensorsHeaderBytes);
      ASSERT_TRUE(file_bytes >= 8 && length <= file_bytes - 8) << length << " of " << file_bytes;
    };
    accepts(parse, bytes, i);
  }
}

TEST(Mutation, ShardHeadersNeverCrashAndAcceptedOnesAreWhatWeWrite) {
  const ShardHeader header{.info = tests::shard_info(4, 8, 16),
                           .file_bytes = 8192,
                           .data_offset = 5120,
                           .root_hash = {0x0123456789abcdef, 42}};
  const std::string good = encode_shard_header(header);
  const std::size_t text_end = good.find_last_not_of(" \n") + 1;
  Mutator mutator(kSeed);
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i) {
    std::string mutated =
        i == 0 ? good.substr(0, text_end) : mutator.mutate(good.substr(0, text_end));
    // Most keep their length, as a damaged file does; the rest are cut or grown.
    if (i % 8 != 7) mutated.resize(kShardHeaderBytes - 1, ' '), mutated += '\n';
    if (i == 0) mutated = good;
    const auto parse = [](const std::string& text) {
      const ShardHeader read = decode_shard_header(std::as_bytes(std::span(text)), 8192, "s.h5");
      ASSERT_EQ(encode_shard_header(read), text.substr(0, kShardHeaderBytes));
      ASSERT_LE(read.data_end(), 8192U);
      ASSERT_GE(read.data_offset, kShardHeaderBytes);
    };
    accepted += accepts(parse, mutated, i) ? 1 : 0;
  }
  EXPECT_GE(accepted, 1);
}

}  // namespace
}  // namespace hedgerow::storage
