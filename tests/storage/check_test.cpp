#include "storage/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/file.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Check : public ::testing::Test {
 protected:
  Check() {
    fs::create_directories(directory_ / "hidden");
    for (int i = 0; i < 6; ++i) {
      ShardInfo info = tests::shard_info(4, 8, 16);
      info.shard = i;
      const std::string name = "hidden/s" + std::to_string(i) + ".h5";
      files_.push_back({FileKind::kHiddenShard, tests::write_shard(directory_ / name, info, name)});
    }
    tests::write_bytes(directory_ / "artifact", std::string(1000, 'a'));
    files_.push_back({FileKind::kWhole, {"artifact", 1000, hash_file(directory_ / "artifact")}});
  }
  CheckResult check(int num_threads = 3) { return check_run(layout_, files_, num_threads); }

  tests::TemporaryDirectory directory_;
  RunLayout layout_{directory_.path()};
  std::vector<CommittedFile> files_;
};

TEST_F(Check, ASoundRunHasNoDamageAndEveryByteIsCounted) {
  const CheckResult result = check();
  EXPECT_TRUE(result.damages.empty());
  EXPECT_EQ(result.files_checked, 7U);
  std::uint64_t bytes = 0;
  for (const CommittedFile& file : files_)
    bytes += fs::file_size(layout_.resolve(file.record.name));
  EXPECT_EQ(result.bytes_checked, bytes);
  EXPECT_FALSE(result.stopped);
}

TEST_F(Check, EachDamageIsNamedWithItsPlaceInTheOrderOfTheFiles) {
  const fs::path shard1 = directory_ / "hidden/s1.h5";
  const std::string bytes = tests::bytes_of(shard1);
  const ShardInfo info = ShardReader(shard1).info();
  const auto sequence2 = tests::sequence_bytes(info, 2);
  const std::size_t at =
      bytes.find(std::string(reinterpret_cast<const char*>(sequence2.data()), sequence2.size()));
  ASSERT_NE(at, std::string::npos);
  tests::flip_bit(shard1, at * 8 + 5);
  tests::flip_bit(directory_ / "hidden/s2.h5", 5000 * 8);  // HDF5's own bytes
  fs::remove(directory_ / "hidden/s4.h5");
  fs::resize_file(directory_ / "hidden/s5.h5", 4096);
  tests::flip_bit(directory_ / "artifact", 77);
  for (const int threads : {1, 4}) {
    const CheckResult result = check(threads);
    ASSERT_EQ(result.damages.size(), 5U);
    EXPECT_EQ(result.damages[0].name, "hidden/s1.h5");
    EXPECT_EQ(result.damages[0].where, "sequence 2");
    EXPECT_EQ(result.damages[0].kind, ErrorKind::kCorrupt);
    EXPECT_EQ(result.damages[1].name, "hidden/s2.h5");
    EXPECT_EQ(result.damages[1].where, "outside its sequences");
    EXPECT_EQ(result.damages[2].name, "hidden/s4.h5");
    EXPECT_EQ(result.damages[2].kind, ErrorKind::kNotFound);
    EXPECT_EQ(result.damages[3].name, "hidden/s5.h5");
    EXPECT_THAT(result.damages[3].what, HasSubstr("the journal recorded"));
    EXPECT_EQ(result.damages[4].name, "artifact");
    EXPECT_EQ(result.damages[4].where, "whole file");
  }
}

TEST_F(Check, TwoDamagedSequencesOfOneShardAreTwoDamages) {
  std::string bytes = tests::bytes_of(directory_ / "hidden/s0.h5");
  const ShardInfo info = ShardReader(directory_ / "hidden/s0.h5").info();
  for (const std::int64_t sequence : {1, 3}) {
    const auto content = tests::sequence_bytes(info, sequence);
    bytes[bytes.find(std::string(reinterpret_cast<const char*>(content.data()), content.size())) +
          9] ^= 4;
  }
  tests::write_bytes(directory_ / "hidden/s0.h5", bytes);
  const CheckResult result = check();
  ASSERT_EQ(result.damages.size(), 2U);
  EXPECT_EQ(result.damages[0].where, "sequence 1");
  EXPECT_EQ(result.damages[1].where, "sequence 3");
}

TEST_F(Check, StopsWhenToldAndSaysSo) {
  const CheckResult result =
      check_run(layout_, files_, 1, [](std::uint64_t, std::uint64_t) { return false; });
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.files_checked, 1U);
}

TEST_F(Check, ANameThatLeavesTheRunDirectoryIsReportedAndNotOpened) {
  files_ = {{FileKind::kWhole, {"../../etc/passwd", 1, {}}}};
  const CheckResult result = check();
  ASSERT_EQ(result.damages.size(), 1U);
  EXPECT_EQ(result.damages[0].kind, ErrorKind::kUsage);
}

}  // namespace
}  // namespace hedgerow::storage
