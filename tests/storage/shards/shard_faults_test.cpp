// The gate of the hidden-state format (label faults): whatever happens to a shard at rest, nothing
// is read silently wrong and nothing crashes. The unit tests hold a smaller version of the first.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "storage/base/error.hpp"
#include "storage/shards/shard_header.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
constexpr std::uint32_t kSeed = 7;

class ShardFaults : public ::testing::Test {
 protected:
  ShardFaults() {
    record_ = tests::write_shard(path_, info_);
    sound_ = tests::bytes_of(path_);
    header_ = decode_shard_header(std::as_bytes(std::span(sound_)), sound_.size(), "s.h5");
  }
  // The kind of the first thing found; nothing if the file reads as sound.
  std::optional<ErrorKind> found(bool with_record) const {
    try {
      const ShardReader reader(path_, with_record ? std::optional(record_) : std::nullopt);
      return reader.check().empty() ? std::nullopt : std::optional(ErrorKind::kCorrupt);
    } catch (const Error& error) {
      return error.kind();
    }
  }
  bool is_detected(bool with_record) const {
    const std::optional<ErrorKind> kind = found(with_record);
    return kind == ErrorKind::kCorrupt || kind == ErrorKind::kUsage;
  }

  tests::MemoryDirectory directory_;
  fs::path path_ = directory_ / "s.h5";
  ShardInfo info_ = tests::shard_info(24, 32, 48);
  FileRecord record_;
  std::string sound_;
  ShardHeader header_;
};

TEST_F(ShardFaults, TenThousandBitFlipsNoneSilentNoneFatal) {
  std::mt19937 random(kSeed);
  for (int flip = 0; flip < 10'000; ++flip) {
    // Every fourth outside the chunks, which are most of the file.
    std::size_t bit = random() % (sound_.size() * 8);
    if (flip % 4 == 0) bit = random() % (header_.data_offset * 8);
    tests::flip_bit(path_, bit);
    ASSERT_TRUE(is_detected(flip % 2 == 0))
        << "seed " << kSeed << ", flip " << flip << ", bit " << bit;
    tests::flip_bit(path_, bit);
  }
  EXPECT_FALSE(found(true)) << "the file must be sound again";
}

TEST_F(ShardFaults, EveryBitOutsideTheChunksIsCovered) {
  for (std::size_t byte = 0; byte < sound_.size(); ++byte) {
    if (byte >= header_.data_offset && byte < header_.data_end()) continue;
    tests::flip_bit(path_, 8 * byte + byte % 8);
    ASSERT_TRUE(is_detected(false)) << "byte " << byte;
    tests::flip_bit(path_, 8 * byte + byte % 8);
  }
}

TEST_F(ShardFaults, TruncationAtEachPageAndAroundIt) {
  for (std::size_t page = 0; page <= sound_.size(); page += 4096) {
    for (const std::size_t length : {page, page + 1, page + 4095}) {
      if (length >= sound_.size()) continue;
      tests::write_bytes(path_, sound_.substr(0, length));
      ASSERT_TRUE(is_detected(true)) << length << " of " << sound_.size() << " bytes";
      ASSERT_TRUE(is_detected(false)) << length << " of " << sound_.size() << " bytes";
    }
  }
}

TEST_F(ShardFaults, ZeroedAndRandomPages) {
  std::mt19937 random(kSeed);
  for (const bool zero : {true, false}) {
    for (std::size_t page = 0; page < sound_.size(); page += 4096) {
      std::string damaged = sound_;
      const std::size_t end = std::min(page + 4096, damaged.size());
      std::generate(damaged.begin() + static_cast<std::ptrdiff_t>(page),
                    damaged.begin() + static_cast<std::ptrdiff_t>(end),
                    [&] { return zero ? '\0' : static_cast<char>(random()); });
      if (damaged == sound_) continue;
      tests::write_bytes(path_, damaged);
      ASSERT_TRUE(is_detected(true)) << "page at " << page;
      ASSERT_TRUE(is_detected(false)) << "page at " << page;
    }
  }
}

TEST_F(ShardFaults, AnyTwoChunksSwapped) {
  const std::size_t stride = info_.bytes_per_sequence();
  const auto chunk = [&](std::string& file, std::int64_t i) {
    return file.begin() +
           static_cast<std::ptrdiff_t>(header_.data_offset + static_cast<std::size_t>(i) * stride);
  };
  for (std::int64_t a = 0; a < info_.num_sequences; ++a) {
    for (std::int64_t b = a + 1; b < info_.num_sequences; ++b) {
      std::string damaged = sound_;
      std::swap_ranges(chunk(damaged, a),
                       chunk(damaged, a) + static_cast<std::ptrdiff_t>(stride),
                       chunk(damaged, b));
      tests::write_bytes(path_, damaged);
      ASSERT_EQ(ShardReader(path_, record_).check().size(), 2U) << a << " and " << b;
    }
  }
}

// Else a chunk and its hash could be carried from one shard, or one attempt, to another.
TEST_F(ShardFaults, TheSameDataInAnotherShardHasOtherHashes) {
  const auto outside = [&](const ShardInfo& info) {
    tests::write_shard(path_, info);
    const std::string file = tests::bytes_of(path_);
    EXPECT_EQ(file.substr(header_.data_offset), sound_.substr(header_.data_offset));
    return file.substr(kShardHeaderBytes, header_.data_offset - kShardHeaderBytes);
  };
  const std::string own = outside(info_);
  EXPECT_EQ(own, sound_.substr(kShardHeaderBytes, own.size()));
  ShardInfo other = info_;
  ++other.shard;
  EXPECT_NE(outside(other), own);
  other = info_;
  ++other.fencing_token;
  EXPECT_NE(outside(other), own);
}

}  // namespace
}  // namespace hedgerow::storage
