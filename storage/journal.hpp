// The journal: an append-only, hash-chained event log in JSON lines, one segment per coordinator term. A record in it
// *is* the commit; the coordinator's state is a fold over the records. Format: storage/README.md "Journal".
//
//   {"seq":17,"at":"2026-11-21T12:00:00.123Z","event":{...},"chain":"9f86d081884c7d65"}
//
// chain = XXH3-64 of (the line up to `,"chain"`) seeded with the chain before, so a record can only follow the one it
// was written after. A torn tail is cut; a damaged middle record is skipped and reported (its objects are unknown and
// are re-derived or redone): replay never refuses to start.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "storage/file.hpp"
#include "storage/run_layout.hpp"

namespace hedgerow::storage {

struct JournalRecord {
  std::uint64_t term = 0;
  std::uint64_t seq = 0;  // grows by one over all terms
  std::string at;         // UTC wall clock, for people; no decision reads it
  nlohmann::json event;
};

struct JournalDamage {
  std::uint64_t term = 0;
  std::uint64_t line = 0;   // 1-based in the segment
  std::string reason;       // "torn tail, 31 bytes cut", "hash chain broken", ...
  bool is_torn_tail = false;
};

struct ReplayResult {
  std::uint64_t last_term = 0;
  std::uint64_t last_seq = 0;
  std::optional<nlohmann::json> snapshot;  // of the newest usable snapshot; records after it only
  std::vector<JournalRecord> records;
  std::vector<JournalDamage> damage;
};

// Reads all segments in term order. A later term's first record seals the one before at (length, chain): what a stale
// coordinator appended after it is ignored. Throws kNotFound if there is no journal directory.
[[nodiscard]] ReplayResult replay_journal(const RunLayout& layout);

// Appends to the segment of one term. One thread (the coordinator's loop).
class Journal {
 public:
  // Opens term last_term + 1 with O_CREAT|O_EXCL (two coordinators that start at once: one of them fails with kUsage)
  // and writes the sealing record {"type":"term_started", "seals": {...}} as its first.
  static Journal start_term(const RunLayout& layout, const ReplayResult& replayed);
  Journal(Journal&&) noexcept;
  ~Journal();

  // Buffers one record; it counts only after commit().
  std::uint64_t append(const nlohmann::json& event);
  // Group commit: write and fsync everything buffered. A failure is final (kExhausted or kUnavailable): the coordinator
  // must stop, because what it would reply may not be on disk.
  void commit();
  // A state snapshot by rename, so that replay need not fold everything; every 50,000 records.
  void write_snapshot(const nlohmann::json& state);

  [[nodiscard]] std::uint64_t term() const noexcept;
  [[nodiscard]] std::uint64_t last_seq() const noexcept;

 private:
  struct Impl;
  explicit Journal(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
