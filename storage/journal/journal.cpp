#include "storage/journal/journal.hpp"

#include <span>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/faults/fault_point.hpp"
#include "storage/files/hash.hpp"
#include "storage/journal/journal_line.hpp"

namespace hedgerow::storage {
namespace {

std::unique_ptr<AppendFile> create_segment(const RunLayout& layout,
                                           std::uint64_t term,
                                           Disk& disk) {
  try {
    return disk.create_exclusive(layout.journal_segment(term));
  } catch (const Error& error) {
    if (!disk.exists(layout.journal_segment(term))) throw;
    throw Overtaken("run " + layout.root().string() +
                    ": another coordinator started at the same moment, and has term " +
                    std::to_string(term));
  }
}

// A coordinator that sees our segment stops writing its own (Journal::commit). One that wrote
// before that is found here, because our segment is made first and the others are looked at after.
// Their ends are read instead of their sizes, which network file systems answer from a cache.
void refuse_if_grown(const RunLayout& layout,
                     const ReplayResult& replayed,
                     std::uint64_t own_term,
                     const Disk& disk) {
  bool has_grown = false;
  for (const std::uint64_t term : terms_in(layout.journal_directory(), disk)) {
    const auto known = replayed.sizes.find(term);
    if (term > replayed.last_term) {
      has_grown |= term != own_term;
    } else if (known != replayed.sizes.end()) {
      has_grown |= !disk.read_part(layout.journal_segment(term), known->second, 1).empty();
    }
  }
  if (!has_grown) return;
  throw Overtaken("run " + layout.root().string() +
                  ": its journal grew while it was being read, so another coordinator is at work");
}

// Bounds the record: of more damage the rest is settled by the terms that follow.
constexpr std::size_t kMaxSettled = 1000;

// The damage that no earlier term has settled. A torn tail is none: it is cut, and no worker was
// told what stood there.
nlohmann::json newly_settled(const std::vector<JournalDamage>& damage) {
  nlohmann::json settled = nlohmann::json::array();
  for (const JournalDamage& item : damage) {
    if (item.is_torn_tail || item.is_settled || settled.size() == kMaxSettled) continue;
    settled.push_back(to_settled(item));
  }
  return settled;
}

}  // namespace

struct Journal::Impl {
  Impl(RunLayout run_layout, std::uint64_t own_term, std::uint64_t first_seq, Disk& run_disk)
      : layout(std::move(run_layout)),
        disk(run_disk),
        term(own_term),
        seq(first_seq),
        chain(first_seed(own_term)),
        file(create_segment(layout, own_term, disk)) {}

  RunLayout layout;
  Disk& disk;
  std::uint64_t term;
  std::uint64_t seq;    // of the last record, buffered ones included
  std::uint64_t chain;  // likewise
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;
  std::uint64_t lines_at_snapshot = 0;
  std::unique_ptr<AppendFile> file;
  std::string buffer;
  bool failed = false;
};

Journal::Journal(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Journal::Journal(Journal&&) noexcept = default;
Journal::~Journal() = default;

Journal Journal::start_term(const RunLayout& layout,
                            const ReplayResult& replayed,
                            Disk& disk,
                            const std::string& at,
                            const std::string& recipe_hash) {
  disk.make_directories(layout.journal_directory());
  const std::uint64_t term = replayed.last_term + 1;
  Journal journal(std::make_unique<Impl>(layout, term, replayed.last_seq, disk));
  try {
    refuse_if_grown(layout, replayed, term, disk);
  } catch (...) {
    // Without a record it would do no harm either.
    disk.remove(layout.journal_segment(term));
    throw;
  }
  nlohmann::json seals = nlohmann::json::array();
  for (const SegmentEnd& end : replayed.unsealed) {
    // A coordinator that was killed between write and fsync has left records that no power loss may
    // take away any more once we act on them.
    disk.sync_file(layout.journal_segment(end.term));
    seals.push_back(to_seal(end));
  }
  // A seal that is damaged would let what a stale coordinator wrote behind it count again, so each
  // is repeated.
  for (const SegmentEnd& end : replayed.sealed) seals.push_back(to_seal(end));
  if (!replayed.unsealed.empty()) disk.sync_directory(layout.journal_directory());
  nlohmann::json event = {{"type", "term_started"}, {"term", term}, {"seals", seals}};
  if (nlohmann::json settled = newly_settled(replayed.damage); !settled.empty())
    event["settled"] = std::move(settled);
  if (!recipe_hash.empty()) event["recipe"] = recipe_hash;
  journal.append(event, at);
  journal.commit();
  disk.sync_directory(layout.journal_directory());
  return journal;
}

std::uint64_t Journal::append(const nlohmann::json& event, const std::string& at) {
  nlohmann::ordered_json object;
  object["seq"] = ++impl_->seq;
  object["at"] = at;
  object["event"] = event;
  const std::string line = seal_line(object, impl_->chain);
  if (line.size() > kMaxJournalLineBytes) {
    throw Error(ErrorKind::kInternal,
                "journal: a record of " + std::to_string(line.size()) +
                    " bytes would not be read back, at most " +
                    std::to_string(kMaxJournalLineBytes) + " are");
  }
  impl_->buffer += line + "\n";
  ++impl_->lines;
  return impl_->seq;
}

void Journal::commit() {
  if (impl_->failed) {
    throw Error(
        ErrorKind::kUnavailable,
        impl_->layout.journal_segment(impl_->term).string() +
            ": an earlier write failed, so nothing more may be written; restart the coordinator");
  }
  if (impl_->buffer.empty()) return;
  impl_->failed = true;  // until all of it is known to be on disk
  impl_->file->append(impl_->buffer);
  fault_point("storage.journal.written");
  impl_->file->sync();
  impl_->bytes += impl_->buffer.size();
  impl_->buffer.clear();
  // Where that cannot be told, fencing tokens and file names still keep a stale coordinator
  // harmless.
  if (impl_->disk.exists(impl_->layout.journal_segment(impl_->term + 1))) {
    throw Overtaken(impl_->layout.journal_segment(impl_->term).string() + ": term " +
                    std::to_string(impl_->term + 1) +
                    " has begun, so another coordinator took this run over");
  }
  impl_->failed = false;
}

void Journal::write_snapshot(const TextWriter& write) {
  commit();
  nlohmann::ordered_json object;
  object["format"] = "snapshot/1";
  object["seq"] = impl_->seq;
  object["after"] = to_seal({.term = impl_->term, .bytes = impl_->bytes, .chain = impl_->chain});
  object["lines"] = impl_->lines;
  std::string head = object.dump();
  head.back() = ',';
  head += "\"state\":";
  const auto write_sealed = [&](const TextSink& sink) {
    Hasher64 chain;
    const TextSink chained = [&](std::string_view piece) {
      chain.update(std::as_bytes(std::span(piece)));
      sink(piece);
    };
    chained(head);
    write(chained);
    sink(line_end(chain.digest()));
  };
  impl_->disk.write_atomically(impl_->layout.snapshot(impl_->term), write_sealed);
  impl_->lines_at_snapshot = impl_->lines;
}

bool Journal::wants_snapshot() const noexcept {
  return impl_->lines - impl_->lines_at_snapshot >= kRecordsPerSnapshot;
}

std::uint64_t Journal::term() const noexcept { return impl_->term; }
std::uint64_t Journal::last_seq() const noexcept { return impl_->seq; }

}  // namespace hedgerow::storage
