#include "storage/shards/boundary_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::storage {
namespace {

// Enough to hide the latency of one read behind another; the bandwidth of a disk is reached by two.
constexpr int kMaxReaderThreads = 4;

// The shards of a boundary by sequence. Any thread.
class ShardSet {
 public:
  ShardSet(const RunLayout& layout,
           const std::vector<FileRecord>& records,
           std::chrono::milliseconds timeout) {
    if (records.empty()) throw Error(ErrorKind::kInternal, "a boundary reader was given no shards");
    for (const FileRecord& record : records) {
      const std::filesystem::path path = layout.resolve(record.name);
      wait_until_visible(path, timeout);
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

// A ring of `depth + held` buffers: position p of the plan lies in slot p % that. Threads claim
// positions in order and fill their slots; next() gives one out and thereby frees the one given out
// `held` calls before.
struct BoundaryReader::Impl {
  struct Slot {
    std::shared_ptr<std::byte[]> bytes;
    std::int64_t position = -1;  // what bytes or error belong to
    std::exception_ptr error;
  };

  Impl(const RunLayout& layout,
       const std::vector<FileRecord>& records,
       std::chrono::milliseconds timeout)
      : shards(layout, records, timeout) {}
  ~Impl() { stop(); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void stop() {
    for (std::jthread& thread : threads) thread.request_stop();
    threads.clear();  // joins
  }

  void start(std::vector<std::int64_t> order, const ReadAhead& wanted) {
    stop();
    sequences = std::move(order);
    ahead = wanted;
    ahead.depth = std::max(ahead.depth, 1);
    ahead.held = std::max(ahead.held, 1);
    claimed = delivered = 0;
    // Those that the caller holds are not in flight.
    slots.assign(static_cast<std::size_t>(ahead.depth + ahead.held), Slot{});
    const auto useful = std::min<std::size_t>(
        {static_cast<std::size_t>(ahead.depth), sequences.size(), kMaxReaderThreads});
    for (std::size_t i = 0; i < useful; ++i) {
      threads.emplace_back([this](const std::stop_token& token) { fill(token); });
    }
  }

  Slot& slot(std::int64_t position) {
    return slots[static_cast<std::size_t>(position) % slots.size()];
  }

  [[nodiscard]] std::size_t bytes_per_sequence() const {
    return shards.info().bytes_per_sequence();
  }

  // The slots of the sequences given out last (up to position delivered - 1) stay untouched.
  bool may_claim() const {
    return claimed < std::ssize(sequences) && claimed < delivered - ahead.held + std::ssize(slots);
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
        if (!target.bytes) {
          target.bytes = ahead.make_buffer ? ahead.make_buffer(bytes_per_sequence())
                                           : std::make_shared<std::byte[]>(bytes_per_sequence());
        }
        shards.read(sequences[static_cast<std::size_t>(position)],
                    {target.bytes.get(), bytes_per_sequence()});
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
  std::vector<std::int64_t> sequences;  // constant while threads run, like `ahead`
  ReadAhead ahead;
  std::vector<Slot> slots;
  std::int64_t claimed = 0;    // positions that threads have taken; guarded by mutex
  std::int64_t delivered = 0;  // positions that next() has given out; guarded by mutex
  double seconds_waited = 0.0;
  std::vector<std::jthread> threads;  // last: joined before anything above goes
};

BoundaryReader::BoundaryReader(const RunLayout& layout,
                               const std::vector<FileRecord>& shards,
                               std::chrono::milliseconds timeout)
    : impl_(std::make_unique<Impl>(layout, shards, timeout)) {}
BoundaryReader::BoundaryReader(BoundaryReader&&) noexcept = default;
BoundaryReader::~BoundaryReader() = default;

const ShardInfo& BoundaryReader::info() const { return impl_->shards.info(); }

void BoundaryReader::plan(std::vector<std::int64_t> sequences, const ReadAhead& ahead) {
  for (const std::int64_t sequence : sequences) {
    if (!impl_->shards.holds(sequence)) {
      throw Error(ErrorKind::kNotFound,
                  fmt::format("boundary {}: sequence {} is in none of its committed shards",
                              info().boundary,
                              sequence));
    }
  }
  impl_->start(std::move(sequences), ahead);
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
  return {slot.bytes.get(), impl.bytes_per_sequence()};
}

bool BoundaryReader::is_ready() const {
  const std::lock_guard lock(impl_->mutex);
  const std::int64_t position = impl_->delivered;
  return position < std::ssize(impl_->sequences) && impl_->slot(position).position == position;
}

double BoundaryReader::seconds_waited() const { return impl_->seconds_waited; }

}  // namespace hedgerow::storage
