#include "storage/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/files/file.hpp"
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
      // The first takes longest, so that with several threads it ends after the others.
      ShardInfo info = i == 0 ? tests::shard_info(200, 64, 96) : tests::shard_info(4, 8, 16);
      info.shard = i;
      const std::string name = "hidden/s" + std::to_string(i) + ".h5";
      files_.push_back({FileKind::kHiddenShard, tests::write_shard(directory_ / name, info, name)});
    }
    tests::write_bytes(directory_ / "artifact", std::string(1000, 'a'));
    files_.push_back({FileKind::kWhole, {"artifact", 1000, hash_file(directory_ / "artifact")}});
  }
  void flip_bit_of_sequence(const std::string& name, std::int64_t index) {
    const auto content = tests::sequence_bytes(ShardReader(directory_ / name).info(), index);
    const std::string bytes = tests::bytes_of(directory_ / name);
    const std::size_t at =
        bytes.find(std::string(reinterpret_cast<const char*>(content.data()), content.size()));
    ASSERT_NE(at, std::string::npos);
    tests::flip_bit(directory_ / name, at * 8 + 77);
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
  flip_bit_of_sequence("hidden/s0.h5", 199);
  flip_bit_of_sequence("hidden/s1.h5", 2);
  tests::flip_bit(directory_ / "hidden/s2.h5", 5000 * 8);  // HDF5's own bytes
  fs::remove(directory_ / "hidden/s4.h5");
  fs::resize_file(directory_ / "hidden/s5.h5", 4096);
  tests::flip_bit(directory_ / "artifact", 77);
  for (const int threads : {1, 4}) {
    const CheckResult result = check(threads);
    ASSERT_EQ(result.damages.size(), 6U);
    EXPECT_EQ(result.damages[0].name, "hidden/s0.h5");
    EXPECT_EQ(result.damages[0].where, "sequence 199");
    EXPECT_EQ(result.damages[1].name, "hidden/s1.h5");
    EXPECT_EQ(result.damages[1].where, "sequence 2");
    EXPECT_EQ(result.damages[1].kind, ErrorKind::kCorrupt);
    EXPECT_EQ(result.damages[2].name, "hidden/s2.h5");
    EXPECT_EQ(result.damages[2].where, "outside its sequences");
    EXPECT_EQ(result.damages[3].name, "hidden/s4.h5");
    EXPECT_EQ(result.damages[3].kind, ErrorKind::kNotFound);
    EXPECT_EQ(result.damages[4].name, "hidden/s5.h5");
    EXPECT_THAT(result.damages[4].what, HasSubstr("the journal recorded"));
    EXPECT_EQ(result.damages[5].name, "artifact");
    EXPECT_EQ(result.damages[5].where, "whole file");
  }
}

TEST_F(Check, TwoDamagedSequencesOfOneShardAreTwoDamages) {
  for (const std::int64_t sequence : {1, 3}) flip_bit_of_sequence("hidden/s1.h5", sequence);
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
