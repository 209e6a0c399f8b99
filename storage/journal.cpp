#include "storage/journal.hpp"

#include <span>
#include <utility>

#include "storage/error.hpp"
#include "storage/fault_point.hpp"
#include "storage/file.hpp"
#include "storage/journal_line.hpp"
#include "storage/scoped_file.hpp"
#include "storage/utc.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

// The journal directory may be new, and so may the run directory's entry for it.
void make_directory(const RunLayout& layout) {
  std::error_code error;
  if (fs::create_directories(layout.journal_directory(), error)) sync_directory(layout.root());
  if (error)
    throw system_error("create directory", layout.journal_directory().string(), error.value());
}

File create_segment(const RunLayout& layout, std::uint64_t term) {
  try {
    return File::create_exclusive(layout.journal_segment(term));
  } catch (const Error& error) {
    if (!fs::exists(layout.journal_segment(term))) throw;
    throw Error(ErrorKind::kUsage,
                "run " + layout.root().string() +
                    ": another coordinator started at the same moment (it holds term " +
                    std::to_string(term) + "); see 'hedgerow status'");
  }
}

bool same_end(const ReplayResult& a, const ReplayResult& b) {
  const auto equal = [](const SegmentEnd& x, const SegmentEnd& y) {
    return x.term == y.term && x.bytes == y.bytes && x.chain == y.chain;
  };
  return a.last_seq == b.last_seq &&
         std::equal(
             a.unsealed.begin(), a.unsealed.end(), b.unsealed.begin(), b.unsealed.end(), equal);
}

// Whoever sees our segment stops writing theirs (Journal::commit); whoever wrote before that is
// found here, because the segment is made first and the others are read again after.
void refuse_if_grown(const RunLayout& layout,
                     const ReplayResult& replayed,
                     std::uint64_t own_term) {
  ReplayResult now = replay_journal(layout);
  std::erase_if(now.unsealed, [&](const SegmentEnd& end) { return end.term == own_term; });
  if (same_end(replayed, now)) return;
  throw Error(ErrorKind::kUnavailable,
              "run " + layout.root().string() +
                  ": its journal grew while it was being read, so another coordinator is at work; "
                  "see 'hedgerow status'");
}

}  // namespace

struct Journal::Impl {
  Impl(RunLayout run_layout, std::uint64_t own_term, std::uint64_t first_seq, File segment)
      : layout(std::move(run_layout)),
        term(own_term),
        seq(first_seq),
        chain(first_seed(own_term)),
        file(std::move(segment)) {}

  RunLayout layout;
  std::uint64_t term;
  std::uint64_t seq;    // of the last record, buffered ones included
  std::uint64_t chain;  // likewise
  std::uint64_t bytes = 0;
  std::uint64_t lines = 0;
  std::uint64_t lines_at_snapshot = 0;
  File file;
  std::string buffer;
  bool failed = false;
};

Journal::Journal(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Journal::Journal(Journal&&) noexcept = default;
Journal::~Journal() = default;

Journal Journal::start_term(const RunLayout& layout, const ReplayResult& replayed) {
  make_directory(layout);
  const std::uint64_t term = replayed.last_term + 1;
  auto impl = std::make_unique<Impl>(layout, term, replayed.last_seq, create_segment(layout, term));
  Journal journal(std::move(impl));
  // Without a record it would do no harm either.
  ScopedFile segment(layout.journal_segment(term));
  refuse_if_grown(layout, replayed, term);
  segment.keep();
  nlohmann::json seals = nlohmann::json::array();
  for (const SegmentEnd& end : replayed.unsealed) seals.push_back(to_seal(end));
  journal.append({{"type", "term_started"}, {"term", term}, {"seals", seals}});
  journal.commit();
  sync_directory(layout.journal_directory());
  return journal;
}

std::uint64_t Journal::append(const nlohmann::json& event) {
  nlohmann::ordered_json object;
  object["seq"] = ++impl_->seq;
  object["at"] = utc_now();
  object["event"] = event;
  impl_->buffer += seal_line(object, impl_->chain) + "\n";
  ++impl_->lines;
  return impl_->seq;
}

void Journal::commit() {
  if (impl_->failed) {
    throw Error(
        ErrorKind::kUnavailable,
        impl_->file.path().string() +
            ": an earlier write failed, so nothing more may be written; restart the coordinator");
  }
  if (impl_->buffer.empty()) return;
  impl_->failed = true;  // until all of it is known to be on disk
  impl_->file.write_all(std::as_bytes(std::span(impl_->buffer)));
  fault_point("storage.journal.written");
  impl_->file.sync();
  impl_->bytes += impl_->buffer.size();
  impl_->buffer.clear();
  std::error_code unknown;  // counts as absent: fencing tokens and file names still keep a stale
                            // coordinator harmless
  if (fs::exists(impl_->layout.journal_segment(impl_->term + 1), unknown)) {
    throw Error(ErrorKind::kFenced,
                impl_->file.path().string() + ": term " + std::to_string(impl_->term + 1) +
                    " has begun, so another coordinator took this run over");
  }
  impl_->failed = false;
}

void Journal::write_snapshot(const nlohmann::json& state) {
  commit();
  nlohmann::ordered_json object;
  object["format"] = "snapshot/1";
  object["seq"] = impl_->seq;
  object["after"] = to_seal({.term = impl_->term, .bytes = impl_->bytes, .chain = impl_->chain});
  object["lines"] = impl_->lines;
  object["state"] = state;
  std::uint64_t chain = 0;
  write_atomically(impl_->layout.snapshot(impl_->term), seal_line(object, chain));
  impl_->lines_at_snapshot = impl_->lines;
}

bool Journal::wants_snapshot() const noexcept {
  return impl_->lines - impl_->lines_at_snapshot >= kRecordsPerSnapshot;
}

std::uint64_t Journal::term() const noexcept { return impl_->term; }
std::uint64_t Journal::last_seq() const noexcept { return impl_->seq; }

}  // namespace hedgerow::storage
