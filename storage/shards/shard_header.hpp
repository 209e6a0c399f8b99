// The first 4 KiB of a hidden-state shard: text of ours in HDF5's user block that says what the
// file is and where its chunks lie, so that the file can be verified before HDF5 opens it. Pure
// functions of bytes, for tests and fuzzing. Format: storage/README.md "Hidden-state shard".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "storage/files/hash.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::storage {

inline constexpr std::size_t kShardHeaderBytes = 4096;

struct ShardHeader {
  ShardInfo info;
  std::uint64_t file_bytes = 0;
  std::uint64_t data_offset =
      0;              // of chunk 0; chunk i lies at data_offset + i * bytes_per_sequence
  Hash128 root_hash;  // of all bytes outside chunks, its own 32 digits read as zeros

  [[nodiscard]] std::uint64_t data_end() const;
};

// Exactly kShardHeaderBytes; one value, one text.
[[nodiscard]] std::string encode_shard_header(const ShardHeader& header);

// Accepts nothing but what encode_shard_header writes, byte for byte, with numbers that fit each
// other and the file. Throws kCorrupt naming `file`; kUsage if the format is a later version's.
[[nodiscard]] ShardHeader decode_shard_header(std::span<const std::byte> first_bytes,
                                              std::uint64_t file_bytes,
                                              const std::string& file);

}  // namespace hedgerow::storage
