// One boundary as a stream of sequences in any order, prefetched by its own threads: what capture and transfer read.
// A boundary is never held in memory; `depth` sequences at most are in flight.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/hidden_shard.hpp"
#include "storage/run_layout.hpp"

namespace hedgerow::storage {

class BoundaryReader {
 public:
  // `shards` are the committed records of one boundary, covering the sequences that will be asked for.
  // Throws kNotFound (after 90 s of patience for late renames), kCorrupt.
  BoundaryReader(const RunLayout& layout, std::vector<FileRecord> shards);
  BoundaryReader(BoundaryReader&&) noexcept;
  ~BoundaryReader();

  [[nodiscard]] const ShardInfo& info() const;  // of the first shard: dtype, seq_len, hidden_size

  // Announces the order in which next() will deliver; starts prefetching. Replaces an earlier plan.
  void plan(std::vector<std::int64_t> sequences, int depth = 8);
  // The next planned sequence, [seq_len, hidden_size]; valid until the next call. Rethrows a reader thread's error.
  // Throws kInternal past the end of the plan. One thread.
  std::span<const std::byte> next();
  [[nodiscard]] double seconds_waited() const;  // time next() blocked, for the data-wait metric

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
