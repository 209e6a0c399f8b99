#include "storage/boundary_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

#include "storage/error.hpp"
#include "storage/file.hpp"

namespace hedgerow::storage {
namespace {

// Enough to hide the latency of one read behind another; the bandwidth of a disk is reached by two.
constexpr int kMaxReaderThreads = 4;

// The shards of a boundary by sequence. Any thread.
class ShardSet {
 public:
  ShardSet(const RunLayout& layout,
           const std::vector<FileRecord>& records,
           std::chrono::milliseconds patience) {
    if (records.empty()) throw Error(ErrorKind::kInternal, "a boundary reader was given no shards");
    for (const FileRecord& record : records) {
      const std::filesystem::path path = layout.resolve(record.name);
      wait_until_visible(path, patience);
      auto reader = std::make_shared<ShardReader>(path, record);
      const ShardInfo info = reader->info();
      if (shards_.empty()) info_ = info;
      require_same_boundary(info, record.name);
      const auto [place, inserted] =
          shards_.emplace(info.first_sequence, Shard{record, path, info.num_sequences, {}});
      require_no_overlap(place, inserted, record.name);
      if (num_open_ < BoundaryReader::kMaxOpenShards) keep(place->second, std::move(reader));
    }
  }

  [[nodiscard]] const ShardInfo& info() const { return info_; }

  [[nodiscard]] bool holds(std::int64_t sequence) const {
    const auto shard = find(sequence);
    return shard != shards_.end() && sequence < shard->first + shard->second.num_sequences;
  }

  void read(std::int64_t sequence, std::span<std::byte> out) {
    const auto shard = find(sequence);
    reader_of(shard->second)->read(sequence - shard->first, out);
  }

 private:
  struct Shard {
    FileRecord record;
    std::filesystem::path path;
    std::int64_t num_sequences = 0;
    std::shared_ptr<ShardReader> reader;  // guarded by mutex_; null while closed
  };
  using Shards = std::map<std::int64_t, Shard>;

  [[nodiscard]] Shards::const_iterator find(std::int64_t sequence) const {
    const auto after = shards_.upper_bound(sequence);
    return after == shards_.begin() ? shards_.end() : std::prev(after);
  }
  [[nodiscard]] Shards::iterator find(std::int64_t sequence) {
    return std::prev(shards_.upper_bound(sequence));
  }

  void require_same_boundary(const ShardInfo& info, const std::string& name) const {
    if (info.boundary == info_.boundary && info.seq_len == info_.seq_len &&
        info.hidden_size == info_.hidden_size && info.dtype == info_.dtype) {
      return;
    }
    throw Error(ErrorKind::kCorrupt,
                fmt::format("shard {}: boundary {} of {} [{}, {}], expected boundary {} of {} [{}, "
                            "{}] as in the first shard",
                            name,
                            info.boundary,
                            to_string(info.dtype),
                            info.seq_len,
                            info.hidden_size,
                            info_.boundary,
                            to_string(info_.dtype),
                            info_.seq_len,
                            info_.hidden_size));
  }

  void require_no_overlap(Shards::iterator place, bool inserted, const std::string& name) const {
    const auto next = std::next(place);
    const bool overlaps_next =
        next != shards_.end() && place->first + place->second.num_sequences > next->first;
    const bool overlaps_previous =
        place != shards_.begin() &&
        std::prev(place)->first + std::prev(place)->second.num_sequences > place->first;
    if (!inserted || overlaps_next || overlaps_previous) {
      throw Error(ErrorKind::kCorrupt,
                  fmt::format("shard {}: another shard holds some of its sequences too", name));
    }
  }

  std::shared_ptr<ShardReader> reader_of(Shard& shard) {
    {
      const std::lock_guard lock(mutex_);
      if (shard.reader) return shard.reader;
    }
    auto reader = std::make_shared<ShardReader>(shard.path, shard.record);
    const std::lock_guard lock(mutex_);
    if (shard.reader) return shard.reader;
    keep(shard, reader);
    return reader;
  }

  // Closes the file that was opened longest ago when there are too many; a reader in use lives
  // until its read ends.
  void keep(Shard& shard, std::shared_ptr<ShardReader> reader) {
    shard.reader = std::move(reader);
    open_.push_back(&shard);
    if (++num_open_ <= BoundaryReader::kMaxOpenShards) return;
    open_.front()->reader.reset();
    open_.erase(open_.begin());
    --num_open_;
  }

  ShardInfo info_;
  Shards shards_;  // by first sequence; its nodes stay where they are
  std::mutex mutex_;
  std::vector<Shard*> open_;  // in order of opening
  std::size_t num_open_ = 0;
};

}  // namespace

// A ring of `depth` buffers: position p of the plan lies in slot p % depth. Threads claim positions
// in order and fill their slots; next() gives one out and thereby frees the one before.
struct BoundaryReader::Impl {
  struct Slot {
    std::vector<std::byte> bytes;
    std::int64_t position = -1;  // what bytes or error belong to
    std::exception_ptr error;
  };

  Impl(const RunLayout& layout,
       const std::vector<FileRecord>& records,
       std::chrono::milliseconds patience)
      : shards(layout, records, patience) {}
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void stop() {
    for (std::jthread& thread : threads) thread.request_stop();
    threads.clear();  // joins
  }

  void start(std::vector<std::int64_t> order, int depth) {
    stop();
    sequences = std::move(order);
    claimed = delivered = 0;
    // One more than the depth, because the one that the caller holds is not in flight.
    slots.assign(static_cast<std::size_t>(std::max(depth, 1)) + 1, Slot{});
    const auto useful =
        std::min<std::size_t>({slots.size() - 1, sequences.size(), kMaxReaderThreads});
    for (std::size_t i = 0; i < useful; ++i) {
      threads.emplace_back([this](const std::stop_token& token) { fill(token); });
    }
  }

  Slot& slot(std::int64_t position) {
    return slots[static_cast<std::size_t>(position) % slots.size()];
  }

  // The slot of the sequence given out last (position delivered - 1) stays untouched until the next
  // call.
  bool may_claim() const {
    return claimed < std::ssize(sequences) && claimed < delivered - 1 + std::ssize(slots);
  }

  void fill(const std::stop_token& token) {
    std::unique_lock lock(mutex);
    while (changed.wait(
        lock, token, [this] { return claimed == std::ssize(sequences) || may_claim(); })) {
      if (claimed == std::ssize(sequences)) return;
      const std::int64_t position = claimed++;
      lock.unlock();
      Slot& target = slot(position);
      std::exception_ptr error;
      try {
        target.bytes.resize(shards.info().bytes_per_sequence());
        shards.read(sequences[static_cast<std::size_t>(position)], target.bytes);
      } catch (...) {  // a thread's edge: next() rethrows it where someone can react
        error = std::current_exception();
      }
      lock.lock();
      target.error = error;
      target.position = position;
      changed.notify_all();
      if (token.stop_requested()) return;
    }
  }

  ShardSet shards;
  std::mutex mutex;
  std::condition_variable_any changed;
  std::vector<std::int64_t> sequences;  // constant while threads run
  std::vector<Slot> slots;
  std::int64_t claimed = 0;    // positions that threads have taken; guarded by mutex
  std::int64_t delivered = 0;  // positions that next() has given out; guarded by mutex
  double seconds_waited = 0.0;
  std::vector<std::jthread> threads;  // last: joined before anything above goes
};

BoundaryReader::BoundaryReader(const RunLayout& layout,
                               const std::vector<FileRecord>& shards,
                               std::chrono::milliseconds patience)
    : impl_(std::make_unique<Impl>(layout, shards, patience)) {}
BoundaryReader::BoundaryReader(BoundaryReader&&) noexcept = default;
BoundaryReader::~BoundaryReader() = default;

const ShardInfo& BoundaryReader::info() const { return impl_->shards.info(); }

void BoundaryReader::plan(std::vector<std::int64_t> sequences, int depth) {
  for (const std::int64_t sequence : sequences) {
    if (!impl_->shards.holds(sequence)) {
      throw Error(ErrorKind::kNotFound,
                  fmt::format("boundary {}: sequence {} is in none of its committed shards",
                              info().boundary,
                              sequence));
    }
  }
  impl_->start(std::move(sequences), depth);
}

std::span<const std::byte> BoundaryReader::next() {
  Impl& impl = *impl_;
  std::unique_lock lock(impl.mutex);
  if (impl.delivered >= std::ssize(impl.sequences)) {
    throw Error(ErrorKind::kInternal,
                fmt::format("boundary {}: read past the {} planned sequences",
                            info().boundary,
                            impl.sequences.size()));
  }
  const std::int64_t position = impl.delivered++;
  impl.changed.notify_all();  // the slot before is free now
  Impl::Slot& slot = impl.slot(position);
  if (slot.position != position) {
    const auto begin = std::chrono::steady_clock::now();
    impl.changed.wait(lock, [&] { return slot.position == position; });
    impl.seconds_waited +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  if (slot.error) std::rethrow_exception(slot.error);
  return slot.bytes;
}

double BoundaryReader::seconds_waited() const { return impl_->seconds_waited; }

}  // namespace hedgerow::storage
