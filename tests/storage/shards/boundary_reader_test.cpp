#include "storage/shards/boundary_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "storage/base/error.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/shard_fixture.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;
using tests::refusal;

class BoundaryReaderTest : public ::testing::Test {
 protected:
  // Shards of 3 sequences each, the last one short.
  void write(std::int64_t num_sequences) {
    records_.clear();
    for (std::int64_t first = 0; first < num_sequences; first += 3) {
      records_.push_back(write_one(
          static_cast<int>(first / 3), first, std::min<std::int64_t>(3, num_sequences - first)));
    }
  }
  FileRecord write_one(int shard, std::int64_t first, std::int64_t count) {
    info_ = tests::shard_info(count, 8, 16);
    info_.shard = shard;
    info_.first_sequence = first;
    const std::string name = RunLayout::hidden_shard(info_.boundary, shard, info_.fencing_token);
    fs::create_directories(layout_.resolve(name).parent_path());
    return tests::write_shard(layout_.resolve(name), info_, name);
  }
  std::vector<std::byte> expected(std::int64_t sequence) const {
    ShardInfo info = info_;
    info.first_sequence = 0;
    return tests::sequence_bytes(info, sequence);
  }
  void expect_delivery(BoundaryReader& reader, const std::vector<std::int64_t>& order) {
    for (const std::int64_t sequence : order) {
      EXPECT_TRUE(std::ranges::equal(reader.next(), expected(sequence))) << "sequence " << sequence;
    }
  }

  tests::TemporaryDirectory directory_;
  RunLayout layout_{directory_.path()};
  std::vector<FileRecord> records_;
  ShardInfo info_;
};

TEST_F(BoundaryReaderTest, DeliversAnyOrderWithRepeatsAtAnyDepth) {
  write(20);
  BoundaryReader reader(layout_, records_);
  EXPECT_EQ(reader.info().seq_len, 8);
  std::vector<std::int64_t> order(60);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i % 20);
  std::mt19937 random(7);
  for (const int depth : {1, 2, 3, 8, 100}) {
    std::shuffle(order.begin(), order.end(), random);
    reader.plan(order, {.depth = depth});
    expect_delivery(reader, order);
    EXPECT_THAT(refusal([&] { reader.next(); }, ErrorKind::kInternal), HasSubstr("past the 60"));
  }
}

TEST_F(BoundaryReaderTest, ANewPlanReplacesAnUnfinishedOne) {
  write(20);
  BoundaryReader reader(layout_, records_);
  for (int round = 0; round < 50; ++round) {
    reader.plan({1, 2, 3, 4, 5, 6, 7, 8}, {.depth = 4});
    expect_delivery(reader, {1, 2});
    reader.plan({19, 0}, {.depth = 4});
    expect_delivery(reader, {19, 0});
  }
}

TEST_F(BoundaryReaderTest, AReaderThreadsErrorComesOutAtItsPlaceInTheOrder) {
  write(9);
  const fs::path damaged = layout_.resolve(records_[1].name);
  std::string bytes = tests::bytes_of(damaged);
  const std::string sequence4(reinterpret_cast<const char*>(expected(4).data()), 8);
  bytes[bytes.find(sequence4)] ^= 1;
  tests::write_bytes(damaged, bytes);
  BoundaryReader reader(layout_, records_);
  reader.plan({8, 3, 4, 5, 0}, {.depth = 4});
  expect_delivery(reader, {8, 3});
  EXPECT_THAT(refusal([&] { reader.next(); }, ErrorKind::kCorrupt), HasSubstr("sequence 1 "));
  expect_delivery(reader, {5, 0});
}

TEST_F(BoundaryReaderTest, ReportsTheTimeItWaitedForData) {
  write(9);
  BoundaryReader reader(layout_, records_);
  EXPECT_EQ(reader.seconds_waited(), 0.0);
  std::vector<std::int64_t> order(2000);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i % 9);
  reader.plan(order, {.depth = 1});
  const auto begin = std::chrono::steady_clock::now();
  expect_delivery(reader, order);
  const double elapsed =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_GT(reader.seconds_waited(), 0.0)
      << "at depth 1 at least one of 2000 reads must be waited for";
  EXPECT_LE(reader.seconds_waited(), elapsed);
}

TEST_F(BoundaryReaderTest, MoreShardsThanMayBeOpenAtOnceAreReadAllTheSame) {
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(BoundaryReader::kMaxOpenShards) + 20;
       ++i) {
    records_.push_back(write_one(static_cast<int>(i), i, 1));
    order.push_back(i);
  }
  BoundaryReader reader(layout_, records_);
  std::ptrdiff_t open = 0;
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    open += fs::read_symlink(entry.path(), gone).extension() == ".h5" ? 1 : 0;
  }
  EXPECT_LE(open, static_cast<std::ptrdiff_t>(BoundaryReader::kMaxOpenShards));
  for (int round = 0; round < 2; ++round) {
    reader.plan(order);
    expect_delivery(reader, order);
  }
}

TEST_F(BoundaryReaderTest, WhatTheShardsCannotServeIsRefused) {
  write(6);
  BoundaryReader reader(layout_, records_);
  EXPECT_THAT(refusal([&] { reader.plan({0, 6}); }, ErrorKind::kNotFound), HasSubstr("sequence 6"));
  EXPECT_THAT(refusal([&] { reader.plan({-1}); }, ErrorKind::kNotFound), HasSubstr("sequence -1"));

  records_.push_back(write_one(7, 5, 2));
  EXPECT_THAT(refusal([&] { BoundaryReader(layout_, records_); }, ErrorKind::kCorrupt),
              HasSubstr("another shard"));
  records_.back() = write_one(7, 0, 2);
  EXPECT_THAT(refusal([&] { BoundaryReader(layout_, records_); }, ErrorKind::kCorrupt),
              HasSubstr("another shard"));
  fs::remove(layout_.resolve(records_.back().name));
  EXPECT_THAT(refusal([&] { BoundaryReader(layout_, records_, 1ms); }, ErrorKind::kNotFound),
              HasSubstr("s00007"));
}

// A device copies from a buffer long after next(): with held = 3 the last three must stand, and
// what is read goes where the caller wants it.
TEST_F(BoundaryReaderTest, WhatIsHeldStaysWhileTheReaderGoesOn) {
  write(12);
  BoundaryReader reader(layout_, records_);
  std::atomic<int> made{0};
  const auto make_buffer = [&made](std::size_t bytes) {
    ++made;
    return std::make_shared<std::byte[]>(bytes);
  };
  reader.plan({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11},
              {.depth = 1, .held = 3, .make_buffer = make_buffer});
  std::vector<std::span<const std::byte>> given;
  for (std::int64_t sequence = 0; sequence < 12; ++sequence) {
    given.push_back(reader.next());
    if (sequence < 11) {
      // What is next is there; nothing that is held may have made way for it.
      while (!reader.is_ready()) std::this_thread::yield();
    }
    for (std::int64_t held = std::max<std::int64_t>(0, sequence - 2); held <= sequence; ++held) {
      EXPECT_TRUE(std::ranges::equal(given[static_cast<std::size_t>(held)], expected(held)))
          << "sequence " << held << " at " << sequence;
    }
  }
  EXPECT_FALSE(reader.is_ready()) << "past the end";
  EXPECT_EQ(made, 4) << "depth + held";
}

}  // namespace
}  // namespace hedgerow::storage
