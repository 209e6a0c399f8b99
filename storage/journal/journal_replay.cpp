// Reading a journal: seals first (from the newest term down, because a sealed segment's own seals
// may not count), then the newest snapshot that they leave usable, then the records after it.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/journal/journal.hpp"
#include "storage/journal/journal_line.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

// What the first records of all segments say, by term.
struct Heads {
  std::map<std::uint64_t, SegmentEnd> seals;
  std::set<nlohmann::json> settled;  // damage, as to_settled() names it
  // Segments that had no whole first record then, and their bytes. They count no further, because
  // what was written since has seals that are not known here.
  std::map<std::uint64_t, std::uint64_t> unfinished;

  // How far the segment may be read.
  [[nodiscard]] std::uint64_t limit(std::uint64_t term) const {
    if (const auto seal = seals.find(term); seal != seals.end()) return seal->second.bytes;
    const auto begun = unfinished.find(term);
    return begun != unfinished.end() ? begun->second : kToTheEnd;
  }
};

// Seals of earlier terms, in the first record of each.
constexpr std::size_t kSealsRepeated = 8;
constexpr std::size_t kFirstRecordBytes = kMaxJournalLineBytes + 1;  // with its newline

// A place in a segment from which reading goes on.
struct Position {
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;
  std::uint64_t chain = 0;
};

}  // namespace

std::vector<std::uint64_t> terms_in(const fs::path& directory, const Disk& disk) {
  const std::optional<std::vector<DiskEntry>> entries = disk.list(directory);
  if (!entries) {
    throw Error(ErrorKind::kNotFound,
                directory.string() + ": no such directory; this is not a run, or it has not begun");
  }
  std::vector<std::uint64_t> terms;
  for (const DiskEntry& entry : *entries) {
    const fs::path name(entry.name);
    if (name.extension() != ".jsonl") continue;
    const std::string stem = name.stem().string();
    std::uint64_t term = 0;
    const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), term);
    if (error == std::errc() && end == stem.data() + stem.size()) terms.push_back(term);
  }
  std::sort(terms.begin(), terms.end());
  return terms;
}

namespace {

Heads read_heads(const RunLayout& layout,
                 const std::vector<std::uint64_t>& terms,
                 const Disk& disk) {
  Heads heads;
  for (auto term = terms.rbegin(); term != terms.rend(); ++term) {
    const std::string text =
        disk.read_part(layout.journal_segment(*term),
                       0,
                       std::min<std::uint64_t>(heads.limit(*term), kFirstRecordBytes));
    const std::size_t newline = text.find('\n');
    if (newline == std::string::npos) {
      if (text.size() < kFirstRecordBytes) heads.unfinished.emplace(*term, text.size());
      continue;
    }
    const auto line = split_line(std::string_view(text).substr(0, newline));
    if (!line || chain_of(line->body, first_seed(*term)) != line->chain) continue;
    try {
      const nlohmann::json event = object_of(*line).at("event");
      for (const nlohmann::json& seal : event.at("seals")) {
        const SegmentEnd end = from_seal(seal);
        heads.seals.emplace(end.term, end);
      }
      if (const auto settled = event.find("settled"); settled != event.end())
        heads.settled.insert(settled->begin(), settled->end());
    } catch (const std::exception&) {
      continue;  // the scan reports the line
    }
  }
  return heads;
}

// Scans one segment from a position on and appends what it finds to the result.
class SegmentScan {
 public:
  SegmentScan(std::uint64_t term, Position start, ReplayResult& result)
      : term_(term), good_(start), line_(start.lines), seeds_{start.chain}, result_(result) {}

  // `text` is the segment from the position up to its seal.
  SegmentEnd run(std::string_view text, bool is_sealed) {
    const std::uint64_t end = good_.bytes + text.size();
    while (!text.empty()) {
      const std::size_t newline = text.find('\n');
      ++line_;
      if (newline == std::string_view::npos) {
        suspect("the line is incomplete");
        is_incomplete_ = true;
        break;
      }
      const std::string_view line = text.substr(0, newline);
      text.remove_prefix(newline + 1);
      read_line(line, end - text.size());
    }
    report_tail(end - good_.bytes, is_sealed);
    return {.term = term_, .bytes = good_.bytes, .chain = good_.chain};
  }

 private:
  void read_line(std::string_view text, std::uint64_t end) {
    const auto line =
        text.size() <= kMaxJournalLineBytes ? split_line(text) : std::optional<JournalLine>();
    const bool follows = line && std::any_of(seeds_.begin(), seeds_.end(), [&](std::uint64_t seed) {
                           return chain_of(line->body, seed) == line->chain;
                         });
    if (!follows) {
      seeds_ = chains_after_damage(text, seeds_);
      return suspect(line ? "hash chain broken" : "not a journal line");
    }
    if (!accept(*line)) return;
    good_ = {.bytes = end, .lines = line_, .chain = line->chain};
    seeds_ = {line->chain};
  }

  bool accept(const JournalLine& line) {
    JournalRecord record;
    try {
      nlohmann::json object = object_of(line);
      record = {.term = term_,
                .seq = integer_of<std::uint64_t>(object, "seq"),
                .at = object.at("at").get<std::string>(),
                .event = std::move(object.at("event"))};
    } catch (const std::exception& error) {
      seeds_ = {line.chain};
      suspect(std::string("no record: ") + error.what());
      return false;
    }
    if (record.seq <= result_.last_seq) {
      seeds_ = {line.chain};
      suspect("sequence number " + std::to_string(record.seq) + " after " +
              std::to_string(result_.last_seq));
      return false;
    }
    // A good line after suspects: they are damage in the middle, not a torn tail.
    std::move(suspects_.begin(), suspects_.end(), std::back_inserter(result_.damage));
    suspects_.clear();
    result_.last_seq = record.seq;
    result_.records.push_back(std::move(record));
    return true;
  }

  void suspect(const std::string& reason) {
    suspects_.push_back({.term = term_, .line = line_, .reason = reason, .is_torn_tail = false});
  }

  void report_tail(std::uint64_t bytes, bool is_sealed) {
    if (suspects_.empty()) return;
    // A crash leaves a line without its end; whole lines that do not fit were damaged later.
    const bool is_torn = suspects_.size() == 1 && is_incomplete_;
    if (is_sealed || !is_torn) {
      std::move(suspects_.begin(), suspects_.end(), std::back_inserter(result_.damage));
      return;
    }
    const JournalDamage& first = suspects_.front();
    result_.damage.push_back(
        {.term = term_,
         .line = first.line,
         .reason = "torn tail, " + std::to_string(bytes) + " bytes cut: " + first.reason,
         .is_torn_tail = true});
  }

  std::uint64_t term_;
  Position good_;
  std::uint64_t line_;
  std::vector<std::uint64_t> seeds_;
  std::vector<JournalDamage> suspects_;
  bool is_incomplete_ = false;  // the last line
  ReplayResult& result_;
};

struct Snapshot {
  std::uint64_t term = 0;
  std::uint64_t seq = 0;
  Position position;
  nlohmann::json state;
};

// Throws kCorrupt, or nlohmann's exceptions.
Snapshot read_snapshot(const std::string& text) {
  const auto line = split_line(text);
  if (!line || chain_of(line->body, 0) != line->chain)
    throw Error(ErrorKind::kCorrupt, "its hash does not fit");
  nlohmann::json object = object_of(*line);
  if (object.at("format") != "snapshot/1") throw Error(ErrorKind::kCorrupt, "of another version");
  const SegmentEnd end = from_seal(object.at("after"));
  return {.term = end.term,
          .seq = integer_of<std::uint64_t>(object, "seq"),
          .position = {.bytes = end.bytes,
                       .lines = integer_of<std::uint64_t>(object, "lines"),
                       .chain = end.chain},
          .state = std::move(object.at("state"))};
}

std::optional<Snapshot> newest_snapshot(const RunLayout& layout,
                                        const std::vector<std::uint64_t>& terms,
                                        const Heads& heads,
                                        std::vector<JournalDamage>& damage,
                                        const Disk& disk) {
  for (auto term = terms.rbegin(); term != terms.rend(); ++term) {
    if (!disk.exists(layout.snapshot(*term))) continue;
    try {
      Snapshot snapshot = read_snapshot(disk.read(layout.snapshot(*term)));
      const bool counts = snapshot.term == *term && snapshot.position.bytes <= heads.limit(*term);
      if (counts) return snapshot;  // else: written by a stale coordinator, beyond its seal
    } catch (const std::exception& error) {
      damage.push_back(
          {.term = *term, .line = 0, .reason = std::string("snapshot not used: ") + error.what()});
    }
  }
  return std::nullopt;
}

void scan_segment(const RunLayout& layout,
                  std::uint64_t term,
                  Position start,
                  const Heads& heads,
                  const Disk& disk,
                  ReplayResult& result) {
  const std::uint64_t limit = heads.limit(term);
  const bool is_sealed = heads.seals.contains(term);
  const std::uint64_t needed = is_sealed ? limit : start.bytes;
  const std::string text =
      disk.read_part(layout.journal_segment(term), start.bytes, limit - start.bytes);
  std::uint64_t size = start.bytes + text.size();
  // It may have been cut off before its snapshot's end.
  if (text.empty() && start.bytes > 0)
    size = std::min(size, disk.size_of(layout.journal_segment(term)));
  if (size < needed) {
    result.damage.push_back(
        {.term = term,
         .line = 0,
         .reason = std::to_string(needed - size) + " bytes at the end are missing"});
  }
  if (!is_sealed) result.sizes[term] = size;
  const SegmentEnd end = SegmentScan(term, start, result).run(text, is_sealed);
  if (!is_sealed) result.unsealed.push_back(end);
}

enum class Start { kSnapshot, kFirstRecord };

ReplayResult replay(const RunLayout& layout, Start from, const Disk& disk) {
  const std::vector<std::uint64_t> terms = terms_in(layout.journal_directory(), disk);
  const Heads heads = read_heads(layout, terms, disk);
  ReplayResult result;
  if (!terms.empty()) result.last_term = terms.back();
  for (auto seal = heads.seals.rbegin();
       seal != heads.seals.rend() && result.sealed.size() < kSealsRepeated;
       ++seal)
    result.sealed.push_back(seal->second);
  std::optional<Snapshot> snapshot;
  if (from == Start::kSnapshot)
    snapshot = newest_snapshot(layout, terms, heads, result.damage, disk);
  if (snapshot) {
    result.last_seq = snapshot->seq;
    result.snapshot = std::move(snapshot->state);
  }
  for (const std::uint64_t term : terms) {
    if (snapshot && term < snapshot->term) continue;
    const bool after_snapshot = snapshot && term == snapshot->term;
    const Position start =
        after_snapshot ? snapshot->position : Position{.chain = first_seed(term)};
    scan_segment(layout, term, start, heads, disk, result);
  }
  for (JournalDamage& damage : result.damage)
    damage.is_settled = heads.settled.contains(to_settled(damage));
  return result;
}

}  // namespace

ReplayResult replay_journal(const RunLayout& layout, const Disk& disk) {
  return replay(layout, Start::kSnapshot, disk);
}

ReplayResult replay_history(const RunLayout& layout, const Disk& disk) {
  return replay(layout, Start::kFirstRecord, disk);
}

}  // namespace hedgerow::storage
