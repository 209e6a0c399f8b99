#include "storage/files/hash.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Hash, EqualsThePublishedXxh3ValuesOfEmptyInput) {
  // The XXH3 specification's values for length 0, seed 0: files of other builds must verify.
  EXPECT_EQ(hash64({}), 0x2D06800538D394C2U);
  EXPECT_EQ(hash128({}).hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, HexRoundTripsAndRefusesEverythingElse) {
  const Hash128 hash{.high = 0x0123456789abcdefU, .low = 0x8000000000000001U};
  EXPECT_EQ(hash.hex(), "0123456789abcdef8000000000000001");
  EXPECT_EQ(Hash128::from_hex(hash.hex()), hash);
  for (const std::string& wrong : {std::string(),
                                   std::string(31, 'a'),
                                   std::string(33, 'a'),
                                   std::string(31, 'a') + "g",
                                   std::string(31, 'a') + " "}) {
    EXPECT_THROW((void)Hash128::from_hex(wrong), Error) << wrong;
  }
}

TEST(Hash, PiecesHashLikeTheWholeWhereverTheyAreCut) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>('a' + i % 23);
  const Hash128 whole = hash128(bytes_of(text));
  for (std::size_t cut = 0; cut <= text.size(); cut += 101) {
    Hasher128 hasher;
    hasher.update(bytes_of(text).first(cut)).update(bytes_of(text).subspan(cut));
    EXPECT_EQ(hasher.digest(), whole) << "cut at " << cut;
  }
}

TEST(Hash, NumbersAreHashedAsLittleEndianBytes) {
  const std::array<std::byte, 8> bytes{std::byte{0x88},
                                       std::byte{0x77},
                                       std::byte{0x66},
                                       std::byte{0x55},
                                       std::byte{0x44},
                                       std::byte{0x33},
                                       std::byte{0x22},
                                       std::byte{0x11}};
  Hasher128 hasher;
  hasher.update(std::uint64_t{0x1122334455667788U});
  EXPECT_EQ(hasher.digest(), hash128(bytes));
}

TEST(Hash, AFileLargerThanTheBufferHashesLikeItsBytes) {
  const tests::TemporaryDirectory directory;
  std::string text((std::size_t{1} << 20) + 17, 'x');
  text[1 << 20] = 'y';
  write_atomically(directory / "a", text);
  EXPECT_EQ(hash_file(directory / "a"), hash128(bytes_of(text)));
}

TEST(Hash, ATextHashedInPiecesIsHashedAsAWhole) {
  std::string text;
  for (int i = 0; i < 1'000; ++i) text += std::to_string(i);
  for (const std::size_t cut : {0U, 1U, 240U, 2'889U}) {
    Hasher64 hasher(7);
    hasher.update(bytes_of(text.substr(0, cut))).update(bytes_of(text.substr(cut)));
    EXPECT_EQ(hasher.digest(), hash64(bytes_of(text), 7)) << cut;
  }
}

TEST(Hash, TheSeedChainsRecords) { EXPECT_NE(hash64(bytes_of("a"), 1), hash64(bytes_of("a"), 2)); }

}  // namespace
}  // namespace hedgerow::storage
