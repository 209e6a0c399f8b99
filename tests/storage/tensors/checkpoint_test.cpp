#include "storage/tensors/checkpoint.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

using ::testing::HasSubstr;
using tests::refusal;
using namespace std::string_literals;

Checkpoint sample() {
  Checkpoint checkpoint;
  checkpoint.tensors["layers.0.map_q"] = {
      DType::kF32, {2, 3}, std::vector<std::byte>(24, std::byte(7))};
  checkpoint.tensors["step"] = {DType::kI64, {}, std::vector<std::byte>(8, std::byte(1))};
  checkpoint.state = {
      {"step", 17}, {"best", 0.1}, {"lr", 1e-2 / 3.0}, {"rng", {1, 18446744073709551615ULL}}};
  return checkpoint;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(layout_.resolve(RunLayout::attempt_directory(1)));
  }
  [[nodiscard]] std::filesystem::path path_of(const FileRecord& record) const {
    return layout_.resolve(record.name);
  }

  tests::MemoryDirectory directory_;
  RunLayout layout_{directory_.path()};
  std::filesystem::path path_ = directory_ / "c.safetensors";
};

TEST_F(CheckpointTest, RoundTripKeepsEveryBitOfTensorsAndState) {
  const Checkpoint written = sample();
  const FileRecord record = write_checkpoint(layout_, 1, 17, written);
  const Checkpoint read = read_checkpoint(path_of(record), record);
  ASSERT_EQ(read.tensors.size(), 2U);
  for (const auto& [name, tensor] : written.tensors) {
    EXPECT_EQ(read.tensors.at(name).dtype, tensor.dtype);
    EXPECT_EQ(read.tensors.at(name).shape, tensor.shape);
    EXPECT_EQ(read.tensors.at(name).bytes, tensor.bytes);
  }
  nlohmann::json expected = written.state;
  expected["format"] = "checkpoint/1";
  EXPECT_EQ(read.state, expected);
  EXPECT_EQ(read.state["lr"].get<double>(), 1e-2 / 3.0);
}

TEST_F(CheckpointTest, SameCheckpointGivesTheSameBytesAlsoAfterARoundTrip) {
  const FileRecord first = write_checkpoint(layout_, 1, 17, sample());
  const FileRecord second = write_checkpoint(layout_, 1, 18, read_checkpoint(path_of(first)));
  EXPECT_EQ(first.root_hash, second.root_hash);
}

TEST_F(CheckpointTest, ItsNameAloneSaysItsStepAndWhatItMustHold) {
  const FileRecord record = write_checkpoint(layout_, 1, 17, sample());
  const auto said = RunLayout::parse_checkpoint(path_of(record).filename());
  ASSERT_TRUE(said);
  EXPECT_EQ(said->step, 17);
  EXPECT_EQ(said->hash, hash_file(path_of(record)));
  for (const auto& entry : std::filesystem::directory_iterator(path_of(record).parent_path()))
    EXPECT_EQ(entry.path(), path_of(record)) << "a part of one is left";
}

TEST_F(CheckpointTest, NoOtherNameIsTakenForACheckpoint) {
  const std::string hash(32, 'a');
  EXPECT_TRUE(RunLayout::parse_checkpoint("checkpoint.s0." + hash + ".safetensors"));
  for (const std::string& name :
       {"checkpoint.s8.safetensors"s,
        "checkpoint.safetensors"s,
        "checkpoint.s8.partial"s,
        "checkpoint.s-8." + hash + ".safetensors",
        "checkpoint.s8." + hash + "a.safetensors",
        "checkpoint.s8." + hash + ".safetensors.partial",
        "checkpoint.s1" + std::string(18, '0') + "." + hash + ".safetensors",
        "xcheckpoint.s8." + hash + ".safetensors"}) {
    EXPECT_FALSE(RunLayout::parse_checkpoint(name)) << name;
  }
}

TEST_F(CheckpointTest, EveryFlippedBitIsFound) {
  const FileRecord record = write_checkpoint(layout_, 1, 17, sample());
  const std::filesystem::path path = path_of(record);
  for (std::size_t bit = 0; bit < 8 * record.size; bit += 5) {
    tests::flip_bit(path, bit);
    ASSERT_THAT(refusal([&] { (void)read_checkpoint(path, record); }, ErrorKind::kCorrupt),
                HasSubstr("!= recorded"));
    tests::flip_bit(path, bit);
  }
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsRefused) {
  write_safetensors(path_, {});
  EXPECT_THAT(refusal([&] { (void)read_checkpoint(path_); }, ErrorKind::kCorrupt),
              HasSubstr("checkpoint/1"));
  write_safetensors(path_, {}, {{"format", "checkpoint/1"}, {"state", "[1]"}});
  EXPECT_THAT(refusal([&] { (void)read_checkpoint(path_); }, ErrorKind::kCorrupt),
              HasSubstr("state is damaged"));
  EXPECT_NE(refusal([&] { (void)read_checkpoint(directory_ / "none"); }, ErrorKind::kNotFound),
            "(accepted)");
}

TEST_F(CheckpointTest, AStateThatJsonWouldSilentlyChangeIsABug) {
  Checkpoint checkpoint = sample();
  checkpoint.state["layers"] = {{{"best", std::numeric_limits<double>::infinity()}}};
  EXPECT_THAT(refusal([&] { write_checkpoint(layout_, 1, 17, checkpoint); }, ErrorKind::kInternal),
              HasSubstr("finite"));
}

}  // namespace
}  // namespace hedgerow::storage
