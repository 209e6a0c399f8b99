// Hidden-state shards: the residual stream entering a block, [sequences, seq_len, hidden_size], in
// one immutable HDF5 file. One chunk = one sequence, no filter; XXH3-128 per chunk over (shard id,
// chunk index, bytes) in a side dataset; a root hash over that table and all bytes outside chunks.
// The journal holds (path, size, root hash): those are checked before HDF5 opens the file, a chunk
// when it is read. Format: storage/README.md "Hidden-state shard".
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "storage/base/dtype.hpp"
#include "storage/files/file_record.hpp"
#include "storage/files/hash.hpp"

namespace hedgerow::storage {

struct ShardInfo {
  int boundary = 0;
  int shard = 0;
  std::uint64_t fencing_token = 0;
  std::int64_t first_sequence = 0;  // capture index of the first (storage/recipe/capture_plan.hpp)
  std::int64_t num_sequences = 0;
  std::int64_t seq_len = 0;
  std::int64_t hidden_size = 0;
  DType dtype = DType::kBF16;
  [[nodiscard]] std::size_t bytes_per_sequence() const;
};

// Writes one shard. One thread. A shard that is not finish()ed is no shard: the destructor removes
// it.
class ShardWriter {
 public:
  // Reserves the space: a disk too full throws kExhausted here, before anything is computed for it.
  ShardWriter(const std::filesystem::path& path, const ShardInfo& info);
  ~ShardWriter();
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  // Sequences in order. `bytes` is [seq_len, hidden_size] of info.dtype. Throws kExhausted (disk
  // full), kUnavailable.
  void append(std::span<const std::byte> bytes);
  // Writes the hash table, closes, fsyncs. Throws kInternal unless exactly num_sequences were
  // appended.
  FileRecord finish(const std::string& relative_name);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one shard: chunk offsets are taken once, then plain pread from any thread, without HDF5's
// global lock.
class ShardReader {
 public:
  // Verifies header, size and root hash (against `expected` where given, else the header's own),
  // then opens. Throws kCorrupt naming file and reason, kNotFound, kUsage (a later format).
  explicit ShardReader(const std::filesystem::path& path,
                       const std::optional<FileRecord>& expected = std::nullopt);
  ShardReader(ShardReader&&) noexcept;
  ~ShardReader();

  [[nodiscard]] const ShardInfo& info() const;
  // index in 0..num_sequences-1; out is bytes_per_sequence(). Throws kCorrupt: "<file>, sequence
  // 12: hash .. != recorded ..".
  void read(std::int64_t index, std::span<std::byte> out) const;
  // All chunks; one line per damaged one ("sequence 12: hash ..."), empty when sound.
  [[nodiscard]] std::vector<std::string> check() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hedgerow::storage
