// One boundary as a stream of sequences in any order, prefetched by its own threads: what capture
// and transfer read. A boundary is never held in memory; `depth` sequences at most are in flight.
// Sequences are named by capture index (storage/recipe/capture_plan.hpp). At most kMaxOpenShards
// files are open at a time; a file that comes back is verified again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "storage/files/run_layout.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::storage {

// How a plan is read ahead, and into which memory.
struct ReadAhead {
  int depth = 8;  // sequences in flight
  int held = 1;   // sequences given out that stay valid, the last one included
  // Memory of a sequence; none: the heap. Called by the reader's threads, at most depth + held
  // times a plan. A device's copies want pinned memory, which storage knows nothing of.
  std::function<std::shared_ptr<std::byte[]>(std::size_t bytes)> make_buffer = {};
};

class BoundaryReader {
 public:
  static constexpr std::size_t kMaxOpenShards = 128;

  // `shards` are the committed records of one boundary, covering the sequences that will be asked
  // for. `timeout` is for renames that a network file system shows late. Throws kNotFound,
  // kCorrupt (damaged, of another boundary or shape, two shards with the same sequence).
  BoundaryReader(const RunLayout& layout,
                 const std::vector<FileRecord>& shards,
                 std::chrono::milliseconds timeout = std::chrono::seconds(90));
  BoundaryReader(BoundaryReader&&) noexcept;
  ~BoundaryReader();

  [[nodiscard]] const ShardInfo& info() const;  // of the first shard: dtype, seq_len, hidden_size

  // Announces the order in which next() will deliver; starts prefetching. Replaces an earlier plan.
  // Throws kNotFound naming the first sequence that no shard holds.
  void plan(std::vector<std::int64_t> sequences, const ReadAhead& ahead = {});
  // The next planned sequence, [seq_len, hidden_size]; valid until `held` further calls (one,
  // unless the plan says otherwise) or the next plan. Rethrows a reader thread's error. Throws
  // kInternal past the end of the plan. One thread.
  std::span<const std::byte> next();
  // True if next() would return, or throw, without waiting for a disk.
  [[nodiscard]] bool is_ready() const;
  [[nodiscard]] double seconds_waited() const;  // time next() blocked, for the data-wait metric

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
