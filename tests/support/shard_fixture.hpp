// Small hidden-state shards with contents that a test can recompute: sequence i of a shard is a
// function of (boundary, capture index, position), so that a sequence from the wrong place is never
// equal.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::tests {

inline storage::ShardInfo shard_info(std::int64_t num_sequences,
                                     std::int64_t seq_len,
                                     std::int64_t hidden_size) {
  storage::ShardInfo info;
  info.boundary = 3;
  info.shard = 12;
  info.fencing_token = 41;
  info.num_sequences = num_sequences;
  info.seq_len = seq_len;
  info.hidden_size = hidden_size;
  return info;
}

inline std::vector<std::byte> sequence_bytes(const storage::ShardInfo& info, std::int64_t index) {
  std::vector<std::byte> bytes(info.bytes_per_sequence());
  std::uint64_t state = static_cast<std::uint64_t>(info.boundary) << 32 |
                        static_cast<std::uint64_t>(info.first_sequence + index);
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

inline storage::FileRecord write_shard(const std::filesystem::path& path,
                                       const storage::ShardInfo& info,
                                       const std::string& name = "s.h5") {
  storage::ShardWriter writer(path, info);
  for (std::int64_t i = 0; i < info.num_sequences; ++i) writer.append(sequence_bytes(info, i));
  return writer.finish(name);
}

inline std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

// Its own inverse.
inline void flip_bit(const std::filesystem::path& path, std::size_t bit) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << (bit % 8))));
}

}  // namespace hedgerow::tests
