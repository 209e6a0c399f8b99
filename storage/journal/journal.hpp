// The journal: an append-only, hash-chained event log in JSON lines, one segment per coordinator
// term. A record in it *is* the commit; the coordinator's state is a fold over the records.
// A torn tail is cut; a damaged middle record is skipped and reported (its objects are unknown and
// are re-derived or redone): replay never refuses to start. Format: storage/README.md "Journal".
//
//   {"seq":17,"at":"2026-11-21T12:00:00.123Z","event":{...},"chain":"9f86d081884c7d65"}
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/run_layout.hpp"
#include "storage/journal/disk.hpp"

namespace hedgerow::storage {

inline constexpr std::uint64_t kRecordsPerSnapshot = 50'000;

struct JournalRecord {
  std::uint64_t term = 0;
  std::uint64_t seq = 0;  // grows by one over all terms
  std::string at;         // UTC wall clock, for people; no decision reads it
  nlohmann::json event;
};

struct JournalDamage {
  std::uint64_t term = 0;
  std::uint64_t line = 0;  // 1-based in the segment; 0: its snapshot
  std::string reason;      // "torn tail, 31 bytes cut", "hash chain broken", ...
  bool is_torn_tail = false;
  // A later term began from what is left without it, so what it recorded is done again, or was.
  bool is_settled = false;
};

// How far a segment counts: what the next term's first record seals.
struct SegmentEnd {
  std::uint64_t term = 0;
  std::uint64_t bytes = 0;  // the prefix of good records
  std::uint64_t chain = 0;  // of the last one
};

struct ReplayResult {
  std::uint64_t last_term = 0;  // of the newest segment, also if nothing is in it
  std::uint64_t last_seq = 0;
  std::optional<nlohmann::json> snapshot;  // of the newest usable one; records hold what follows it
  std::vector<JournalRecord> records;
  std::vector<JournalDamage> damage;
  std::vector<SegmentEnd> unsealed;              // segments that no later term has sealed yet
  std::vector<SegmentEnd> sealed;                // the newest others, to be sealed once more
  std::map<std::uint64_t, std::uint64_t> sizes;  // of the unsealed ones, as they were read, by term
};

// Reads the first record of each segment, for its seals, and then in term order what follows the
// newest usable snapshot. What a stale coordinator appended to a sealed segment is ignored. Safe
// beside a running coordinator, whose last record may then look torn. Throws kNotFound if there is
// no journal directory.
[[nodiscard]] ReplayResult replay_journal(const RunLayout& layout, const Disk& disk = os_disk());
// The same from the first record on, snapshots aside: what happened, for people, where the state
// alone does not tell. Segments are never deleted, so nothing is missing.
[[nodiscard]] ReplayResult replay_history(const RunLayout& layout, const Disk& disk = os_disk());

// Another coordinator has the run: it began a later term, or the same one first.
class Overtaken : public Error {
 public:
  explicit Overtaken(const std::string& message) : Error(ErrorKind::kFenced, message) {}
};

// Appends to the segment of one term. One thread (the coordinator's loop).
class Journal {
 public:
  // Opens term last_term + 1 and makes {"type":"term_started","term":..,"seals":[..]} durable as
  // its first record; makes the journal directory if need be. The record names the damage that
  // `replayed` went around, which is settled by it, and `recipe_hash`, if not empty. Throws
  // Overtaken if another coordinator opened that term first, or wrote since `replayed` was read.
  // `disk` outlives the journal.
  static Journal start_term(const RunLayout& layout,
                            const ReplayResult& replayed,
                            Disk& disk = os_disk(),
                            const std::string& at = utc_now(),
                            const std::string& recipe_hash = "");
  Journal(Journal&&) noexcept;
  ~Journal();

  // Buffers one record; it counts only after commit(). Returns its sequence number. `at`: UTC, for
  // people.
  std::uint64_t append(const nlohmann::json& event, const std::string& at = utc_now());
  // Group commit: write and fsync everything buffered, then make sure that no later term has
  // begun. Every failure is final: the coordinator must stop, because what it would reply may not
  // be on disk (kExhausted, kUnavailable) or may no longer count (Overtaken).
  void commit();
  // Commits, then publishes the state after the last record, so that replay starts there. `write`
  // gives the state as JSON on one line.
  void write_snapshot(const TextWriter& write);
  // kRecordsPerSnapshot records were appended since the last snapshot or the term's begin.
  [[nodiscard]] bool wants_snapshot() const noexcept;

  [[nodiscard]] std::uint64_t term() const noexcept;
  [[nodiscard]] std::uint64_t last_seq() const noexcept;

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
