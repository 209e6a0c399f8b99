#include "storage/journal.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <span>
#include <thread>

#include "storage/error.hpp"
#include "storage/file.hpp"
#include "storage/journal_line.hpp"
#include "tests/support/temporary_directory.hpp"
#include "tests/support/writer_of.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class JournalTest : public ::testing::Test {
 protected:
  [[nodiscard]] ReplayResult replay() const {
    return fs::exists(layout_.journal_directory()) ? replay_journal(layout_) : ReplayResult{};
  }
  [[nodiscard]] Journal start() const { return Journal::start_term(layout_, replay()); }

  // A term of its own with records "<name>0", "<name>1", ..., each committed alone.
  void write_term(const std::string& name, int num_records) const {
    Journal journal = start();
    for (int i = 0; i < num_records; ++i) {
      journal.append(named(name + std::to_string(i)));
      journal.commit();
    }
  }
  static nlohmann::json named(const std::string& name) {
    return {{"type", "test"}, {"name", name}};
  }

  static std::vector<std::string> names(const ReplayResult& replayed) {
    std::vector<std::string> result;
    for (const JournalRecord& record : replayed.records) {
      if (record.event.at("type") == "test")
        result.push_back(record.event.at("name").get<std::string>());
    }
    return result;
  }
  [[nodiscard]] std::string text(std::uint64_t term) const {
    return read_text(layout_.journal_segment(term));
  }
  void overwrite(std::uint64_t term, const std::string& text) const {
    File file = File::create(layout_.journal_segment(term));
    file.write_all(std::as_bytes(std::span(text)));
    file.close();
  }
  void append_text(std::uint64_t term, const std::string& text) const {
    File file = File::open_append(layout_.journal_segment(term));
    file.write_all(std::as_bytes(std::span(text)));
    file.close();
  }

  tests::MemoryDirectory directory_;
  RunLayout layout_{directory_ / "run"};
};

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
  std::atomic<int> usage_errors = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < kCoordinators; ++i) {
      threads.emplace_back([&] {
        try {
          (void)Journal::start_term(layout_, replayed);
          ++winners;
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::kUsage) ++usage_errors;
        }
      });
    }
  }
  EXPECT_EQ(winners, 1);
  EXPECT_EQ(usage_errors, kCoordinators - 1);
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
    EXPECT_EQ(error.kind(), ErrorKind::kFenced) << error.what();
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
    EXPECT_EQ(error.kind(), ErrorKind::kUnavailable) << error.what();
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
