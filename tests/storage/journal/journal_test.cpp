#include "storage/journal/journal.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "journal_fixture.hpp"
#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/journal/journal_line.hpp"
#include "tests/support/watched_disk.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(JournalTest, ReplaysWhatWasCommittedOverSeveralTermsInOrder) {
  write_term("a", 2);
  write_term("b", 1);
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "a1", "b0"));
  EXPECT_THAT(replayed.damage, IsEmpty());
  EXPECT_EQ(replayed.last_term, 2U);
  EXPECT_EQ(replayed.last_seq, 5U) << "two term_started and three records";
  for (std::size_t i = 0; i < replayed.records.size(); ++i)
    EXPECT_EQ(replayed.records[i].seq, i + 1);
  EXPECT_EQ(replayed.records.front().event.at("type"), "term_started");
}

TEST_F(JournalTest, ARecordThatWasNotCommittedIsNotThere) {
  {
    Journal journal = start();
    journal.append(named("kept"));
    journal.commit();
    journal.append(named("buffered only"));
  }
  EXPECT_THAT(names(replay()), ElementsAre("kept"));
}

TEST_F(JournalTest, WithoutAJournalDirectoryItIsNotFound) {
  try {
    (void)replay_journal(layout_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kNotFound);
  }
}

TEST_F(JournalTest, BytesThatAreNoUtf8DoNotKeepARecordFromBeingWritten) {
  Journal journal = start();
  journal.append(named("bad \xff byte"));
  journal.commit();
  EXPECT_EQ(names(replay()).size(), 1U);
}

TEST_F(JournalTest, TornTailIsDroppedAndPrefixKeptAtEveryByteOffset) {
  write_term("a", 3);
  const std::string whole = text(1);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    overwrite(1, whole.substr(0, length));
    const auto complete_lines =
        std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length), '\n');
    const ReplayResult replayed = replay();
    ASSERT_EQ(replayed.records.size(), static_cast<std::size_t>(complete_lines))
        << "cut at " << length;
    const bool at_line_end = length == 0 || whole[length - 1] == '\n';
    ASSERT_EQ(replayed.damage.size(), at_line_end ? 0U : 1U) << "cut at " << length;
    if (!at_line_end) {
      EXPECT_TRUE(replayed.damage[0].is_torn_tail);
    }
  }
}

TEST_F(JournalTest, AfterATornTailTheNextTermGoesOnAndTheTailNeverComesBack) {
  write_term("a", 2);
  const std::string whole = text(1);
  overwrite(1, whole.substr(0, whole.size() - 5));
  write_term("b", 1);
  EXPECT_THAT(names(replay()), ElementsAre("a0", "b0"));
  EXPECT_THAT(replay().damage, IsEmpty()) << "the seal ends the first segment before its tail";
  overwrite(1, whole);  // the lost bytes reach the disk after all
  EXPECT_THAT(names(replay()), ElementsAre("a0", "b0"));
}

TEST_F(JournalTest, EveryBitFlipCostsOnlyTheLinesItTouchesAndIsReported) {
  write_term("a", 4);
  const std::string whole = text(1);
  const std::vector<JournalRecord> sound = replay().records;
  ASSERT_EQ(sound.size(), 5U);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    overwrite(1, damaged);
    const ReplayResult replayed = replay();
    ASSERT_FALSE(replayed.damage.empty()) << "bit " << bit << " went unnoticed";
    const auto line =
        static_cast<std::uint64_t>(
            std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(bit / 8), '\n')) +
        1;
    const bool merges_lines = whole[bit / 8] == '\n';
    std::vector<std::uint64_t> expected;
    for (const JournalRecord& record : sound) {
      if (record.seq != line && !(merges_lines && record.seq == line + 1))
        expected.push_back(record.seq);
    }
    std::vector<std::uint64_t> found;
    for (const JournalRecord& record : replayed.records) {
      found.push_back(record.seq);
      EXPECT_EQ(record.event, sound[record.seq - 1].event);
    }
    ASSERT_EQ(found, expected) << "bit " << bit << " of line " << line;
  }
}

TEST_F(JournalTest, ADamagedMiddleRecordIsSkippedReportedAndIsNoTornTail) {
  write_term("a", 3);
  std::string damaged = text(1);
  damaged[damaged.find("\"a1\"") + 1] = 'x';
  overwrite(1, damaged);
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "a2"));
  ASSERT_EQ(replayed.damage.size(), 1U);
  EXPECT_EQ(replayed.damage[0].line, 3U);
  EXPECT_EQ(replayed.damage[0].reason, "hash chain broken");
  EXPECT_FALSE(replayed.damage[0].is_torn_tail);
}

TEST_F(JournalTest, ADamagedLastRecordIsNoTornTail) {
  write_term("a", 2);
  std::string damaged = text(1);
  damaged[damaged.find("\"a1\"") + 1] = 'x';
  overwrite(1, damaged);
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0"));
  ASSERT_EQ(replayed.damage.size(), 1U);
  EXPECT_FALSE(replayed.damage[0].is_torn_tail)
      << "a crash does not end a line that it did not write";
}

TEST_F(JournalTest, DamageIsSettledByTheTermThatFollowsItAndNoOther) {
  write_term("a", 3);
  write_term("b", 3);
  const auto damage_record = [this](std::uint64_t term, const std::string& name) {
    std::string damaged = text(term);
    damaged[damaged.find(name)] = 'x';
    overwrite(term, damaged);
  };
  damage_record(1, "a1");
  ASSERT_EQ(replay().damage.size(), 1U);
  EXPECT_FALSE(replay().damage[0].is_settled);
  write_term("c", 1);
  ASSERT_EQ(replay().damage.size(), 1U) << "the line stays as it is";
  EXPECT_TRUE(replay().damage[0].is_settled);
  EXPECT_TRUE(replay_history(layout_).damage[0].is_settled);
  damage_record(2, "b1");
  ASSERT_EQ(replay().damage.size(), 2U);
  EXPECT_TRUE(replay().damage[0].is_settled);
  EXPECT_FALSE(replay().damage[1].is_settled) << "it came behind the term that settled the other";
  write_term("d", 1);
  EXPECT_TRUE(replay().damage[1].is_settled);
  // Without the record that settled it, it counts as new, and the next term settles it again.
  damage_record(3, "term_started");
  EXPECT_FALSE(replay().damage[0].is_settled);
  write_term("e", 1);
  for (const JournalDamage& damage : replay().damage)
    EXPECT_TRUE(damage.is_settled) << damage.reason;
}

// Made with chains that fit, as a person could who may write here: no state comes of it, and no
// stack overflow.
TEST_F(JournalTest, ALineOverTheCapOrNestedTooDeepIsDamageAndTheNextOneCounts) {
  write_term("a", 1);
  const auto sealed = [](const std::string& body, std::uint64_t& chain) {
    chain = chain_of(body, chain);
    return body + ",\"chain\":\"" + to_hex64(chain) + "\"}\n";
  };
  std::uint64_t chain = replay().unsealed.at(0).chain;
  const auto record = [](int seq, const std::string& event) {
    return "{\"seq\":" + std::to_string(seq) + ",\"at\":\"now\",\"event\":" + event;
  };
  const std::string deep(500'000, '['), flat(500'000, ']'), much(1U << 20, 'x');
  append_text(1, sealed(record(3, "{\"type\":\"test\",\"name\":\"" + much + "\"}"), chain));
  append_text(1, sealed(record(4, deep + flat), chain));
  append_text(1, sealed(record(5, R"({"type":"test","name":"b"})"), chain));
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "b"));
  ASSERT_EQ(replayed.damage.size(), 2U);
  EXPECT_EQ(replayed.damage[0].line, 3U);
  EXPECT_THAT(replayed.damage[1].reason, HasSubstr("nested deeper than 64"));
  Journal journal = start();
  EXPECT_THROW(journal.append(named(much)), Error);
}

TEST_F(JournalTest, ARecordMovedToAnotherPlaceDoesNotCount) {
  write_term("a", 3);
  const std::string whole = text(1);
  const std::size_t line = whole.find('\n') + 1;
  const std::string first = whole.substr(line, whole.find('\n', line) + 1 - line);
  overwrite(1, whole + first);  // a0 once more at the end
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "a1", "a2"));
  EXPECT_EQ(replayed.damage.size(), 1U);
}

TEST_F(JournalTest, OfCoordinatorsThatStartAtOnceExactlyOneGetsTheTerm) {
  write_term("a", 1);
  constexpr int kCoordinators = 8;
  const ReplayResult replayed = replay();
  std::atomic<int> winners = 0;
  std::atomic<int> overtaken = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kCoordinators; ++i) {
      threads.emplace_back([&] {
        try {
          (void)Journal::start_term(layout_, replayed);
          ++winners;
        } catch (const Error& error) {
          if (dynamic_cast<const Overtaken*>(&error) != nullptr) ++overtaken;
        }
      });
    }
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(overtaken, kCoordinators - 1);
  EXPECT_EQ(replay().last_term, 2U);
}

TEST_F(JournalTest, ACoordinatorWhoseTermIsOverLearnsItBeforeItReplies) {
  Journal stale = start();
  Journal current = start();
  stale.append(named("stale"));
  try {
    stale.commit();
    FAIL() << "the stale coordinator would have replied";
  } catch (const Error& error) {
    EXPECT_NE(dynamic_cast<const Overtaken*>(&error), nullptr) << error.what();
  }
  EXPECT_THROW(stale.commit(), Error) << "a failure is final";
  current.append(named("current"));
  current.commit();
  EXPECT_THAT(names(replay()), ElementsAre("current"))
      << "what the stale one wrote lies behind the seal";
}

TEST_F(JournalTest, ATermIsRefusedIfAnotherCoordinatorWroteSinceTheReplay) {
  Journal other = start();
  const ReplayResult replayed = replay();
  other.append(named("acknowledged"));
  other.commit();
  try {
    (void)Journal::start_term(layout_, replayed);
    FAIL() << "the new term would seal an acknowledged record away";
  } catch (const Error& error) {
    EXPECT_NE(dynamic_cast<const Overtaken*>(&error), nullptr) << error.what();
  }
  EXPECT_FALSE(fs::exists(layout_.journal_segment(2))) << "a term that did not begin";
  other.append(named("and goes on"));
  EXPECT_NO_THROW(other.commit());
  EXPECT_THAT(names(replay()), ElementsAre("acknowledged", "and goes on"));
}

TEST_F(JournalTest, AnEmptySegmentOfACoordinatorThatDiedAtOnceIsSealedToo) {
  write_term("a", 1);
  File::create_exclusive(layout_.journal_segment(2)).close();
  write_term("c", 1);
  EXPECT_EQ(replay().last_term, 3U);
  // Neither of the two earlier terms may come back to life.
  const std::string third = text(3);
  append_text(1, third.substr(third.find('\n') + 1));
  append_text(2, text(1));
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "c0"));
  EXPECT_THAT(replayed.damage, IsEmpty());
}

TEST_F(JournalTest, SealedBytesThatAreMissingAreReported) {
  write_term("a", 2);
  write_term("b", 1);
  overwrite(1, text(1).substr(0, text(1).size() - 5));
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0", "b0"));
  ASSERT_EQ(replayed.damage.size(), 2U);
  EXPECT_EQ(replayed.damage[0].reason, "5 bytes at the end are missing");
  EXPECT_FALSE(replayed.damage[1].is_torn_tail) << "these bytes were once known to be on disk";
}

// Whoever begins a term between our look at the first records and our reading of the rest seals
// what we take for open. What it wrote must not count either, or nobody would see that it is there.
TEST_F(JournalTest, ATermThatBeginsWhileTheJournalIsReadIsNotTakenOver) {
  write_term("first", 1);
  write_term("other", 1);
  const std::string written = text(2);
  overwrite(2, "");
  tests::WatchedDisk disk;
  disk.after_read_part = [&](const fs::path& path, std::size_t) {
    if (path == layout_.journal_segment(2) && fs::file_size(path) == 0) append_text(2, written);
  };
  const ReplayResult replayed = replay_journal(layout_, disk);
  EXPECT_THAT(names(replayed), ElementsAre("first0"));
  try {
    static_cast<void>(Journal::start_term(layout_, replayed, disk));
    FAIL() << "took the run over";
  } catch (const Error& error) {
    EXPECT_NE(dynamic_cast<const Overtaken*>(&error), nullptr) << error.what();
  }
  EXPECT_FALSE(fs::exists(layout_.journal_segment(3)));
}

// The first record of term 2 seals term 1; when it is damaged, that of term 3 still does.
TEST_F(JournalTest, ADamagedSealDoesNotLetAStaleTailCountAgain) {
  Journal stale = start();
  stale.append(named("kept"));
  stale.commit();
  { Journal next = start(); }
  stale.append(named("stale"));
  EXPECT_THROW(stale.commit(), Error);
  { Journal third = start(); }
  ASSERT_THAT(names(replay()), ElementsAre("kept"));
  std::string segment = read_text(layout_.journal_segment(2));
  segment[segment.find("seals")] ^= 1;
  write_atomically(layout_.journal_segment(2), segment);
  EXPECT_THAT(names(replay()), ElementsAre("kept"));
}

TEST_F(JournalTest, AForeignFileInTheJournalDirectoryIsLeftAlone) {
  write_term("a", 1);
  write_atomically(layout_.journal_directory() / "notes.jsonl", "not ours\n");
  write_atomically(layout_.journal_directory() / "000009.jsonl.bak", "not ours\n");
  const ReplayResult replayed = replay();
  EXPECT_THAT(names(replayed), ElementsAre("a0"));
  EXPECT_EQ(replayed.last_term, 1U);
}

}  // namespace
}  // namespace hedgerow::storage
