// Where a journal's replay begins: snapshots, and what they spare.
#include <gmock/gmock.h>

#include "journal_fixture.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal_line.hpp"
#include "tests/support/watched_disk.hpp"
#include "tests/support/writer_of.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(JournalTest, ReplayStartsAtTheSnapshotAndGoesOnBehindIt) {
  Journal journal = start();
  journal.append(named("before"));
  journal.write_snapshot(tests::writer_of({{"folded", 1}}));
  journal.append(named("after"));
  journal.commit();
  const ReplayResult replayed = replay();
  ASSERT_TRUE(replayed.snapshot.has_value());
  EXPECT_EQ(replayed.snapshot->at("folded"), 1);
  EXPECT_THAT(names(replayed), ElementsAre("after"));
  EXPECT_EQ(replayed.last_seq, 3U);
  write_term("next", 1);
  EXPECT_THAT(names(replay()), ElementsAre("after", "next0"))
      << "later terms follow the same snapshot";
}

// A run of weeks: 3 GiB of records before the snapshot, which here are a hole in the file.
TEST_F(JournalTest, WhatLiesBeforeTheSnapshotIsNotReadHoweverMuchItIs) {
  constexpr std::uint64_t kHole = 3ULL << 30;
  {
    Journal journal = start();
    journal.append(named("before"));
    journal.write_snapshot(tests::writer_of({{"folded", 1}}));
    journal.append(named("after"));
    journal.commit();
  }
  const auto snapshot_text = read_text(layout_.snapshot(1));
  const auto line = split_line(snapshot_text);
  ASSERT_TRUE(line.has_value());
  auto snapshot = nlohmann::ordered_json::parse(std::string(line->body) + "}");
  const auto end = snapshot.at("after").at("bytes").get<std::uint64_t>();
  snapshot["after"]["bytes"] = end + kHole;
  std::uint64_t chain = 0;
  write_atomically(layout_.snapshot(1), seal_line(snapshot, chain));
  const std::string segment = text(1);
  overwrite(1, segment.substr(0, end));
  fs::resize_file(layout_.journal_segment(1), end + kHole);
  append_text(1, segment.substr(end));
  std::size_t num_read = 0;
  tests::WatchedDisk disk;
  disk.after_read_part = [&](const fs::path&, std::size_t num_bytes) { num_read += num_bytes; };
  const ReplayResult replayed = replay_journal(layout_, disk);
  EXPECT_THAT(names(replayed), ElementsAre("after"));
  EXPECT_THAT(replayed.damage, IsEmpty());
  EXPECT_LT(num_read, 2U << 20) << "the first record, and what follows the snapshot";
  write_term("next", 1);
  EXPECT_THAT(names(replay()), ElementsAre("after", "next0"));
}

// Its state stands in the snapshot, so nothing is lost but what came after.
TEST_F(JournalTest, ASegmentThatWasCutBeforeItsSnapshotsEndIsReportedAndTheRunGoesOn) {
  for (const bool is_sealed : {false, true}) {
    fs::remove_all(layout_.journal_directory());
    {
      Journal journal = start();
      journal.append(named("before"));
      journal.write_snapshot(tests::writer_of({{"folded", 1}}));
      journal.append(named("after"));
      journal.commit();
    }
    if (is_sealed) write_term("next", 1);
    const std::uint64_t whole = fs::file_size(layout_.journal_segment(1));
    constexpr std::uint64_t kLeft = 150;  // less than the first record and "before"
    fs::resize_file(layout_.journal_segment(1), kLeft);
    const ReplayResult replayed = replay();
    ASSERT_TRUE(replayed.snapshot.has_value());
    ASSERT_EQ(replayed.damage.size(), 1U);
    EXPECT_THAT(replayed.damage[0].reason, HasSubstr("bytes at the end are missing"));
    if (is_sealed) {
      EXPECT_THAT(names(replayed), ElementsAre("next0"));
      EXPECT_EQ(replayed.damage[0].reason,
                std::to_string(whole - kLeft) + " bytes at the end are missing");
    } else {
      EXPECT_EQ(replayed.sizes.at(1), kLeft);
    }
    write_term("last", 1);
    EXPECT_EQ(names(replay()).back(), "last0");
  }
}

TEST_F(JournalTest, HistoryGoesBackBeyondEverySnapshot) {
  write_term("first", 1);
  Journal journal = start();
  journal.append(named("before"));
  journal.write_snapshot(tests::writer_of({{"folded", 1}}));
  journal.append(named("after"));
  journal.commit();
  const ReplayResult history = replay_history(layout_);
  EXPECT_THAT(names(history), ElementsAre("first0", "before", "after"));
  EXPECT_FALSE(history.snapshot.has_value());
  EXPECT_EQ(history.last_seq, replay().last_seq);
}

TEST_F(JournalTest, ADamagedSnapshotIsReportedAndAllRecordsAreReplayedInstead) {
  Journal journal = start();
  journal.append(named("a"));
  journal.write_snapshot(tests::writer_of({{"folded", 1}}));
  std::string snapshot = read_text(layout_.snapshot(1));
  snapshot[snapshot.find("folded")] ^= 1;
  write_atomically(layout_.snapshot(1), snapshot);
  const ReplayResult replayed = replay();
  EXPECT_FALSE(replayed.snapshot.has_value());
  EXPECT_THAT(names(replayed), ElementsAre("a"));
  ASSERT_EQ(replayed.damage.size(), 1U);
  EXPECT_THAT(replayed.damage[0].reason, HasSubstr("snapshot not used"));
}

TEST_F(JournalTest, ASnapshotThatAStaleCoordinatorTookBehindItsSealIsIgnored) {
  Journal stale = start();
  stale.append(named("kept"));
  stale.commit();
  // A snapshot of later bytes, as the stale coordinator writes it after the new term has begun.
  const tests::TemporaryDirectory elsewhere;
  fs::copy(layout_.root(), elsewhere / "run", fs::copy_options::recursive);
  Journal current = start();
  const RunLayout copy(elsewhere / "run");
  fs::remove(copy.journal_segment(1));
  Journal twin = Journal::start_term(copy, ReplayResult{});
  for (int i = 0; i < 10; ++i) twin.append(named("stale"));
  twin.write_snapshot(tests::writer_of({{"folded", "stale"}}));
  fs::copy_file(copy.snapshot(1), layout_.snapshot(1));
  const ReplayResult replayed = replay();
  EXPECT_FALSE(replayed.snapshot.has_value());
  EXPECT_THAT(names(replayed), ElementsAre("kept"));
}

TEST_F(JournalTest, AsksForASnapshotAfterFiftyThousandRecordsAndReplaysThem) {
  Journal journal = start();
  for (std::uint64_t i = 1; i < kRecordsPerSnapshot; ++i) {
    ASSERT_FALSE(journal.wants_snapshot()) << i;
    journal.append(i);
  }
  EXPECT_TRUE(journal.wants_snapshot());
  journal.commit();
  EXPECT_EQ(replay().records.size(), kRecordsPerSnapshot);
  journal.write_snapshot(tests::writer_of({{"folded", kRecordsPerSnapshot}}));
  EXPECT_FALSE(journal.wants_snapshot());
  EXPECT_THAT(replay().records, IsEmpty());
}

}  // namespace
}  // namespace hedgerow::storage
