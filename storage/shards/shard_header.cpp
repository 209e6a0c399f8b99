#include "storage/shards/shard_header.hpp"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>

#include "storage/base/error.hpp"
#include "storage/json/strict_json.hpp"

namespace hedgerow::storage {
namespace {

constexpr std::string_view kMagic = "hedgerow hidden shard ";
constexpr int kVersion = 1;
// HDF5's limit of a chunk, and far above any sequence of hidden states.
constexpr std::uint64_t kMaxChunkBytes = std::numeric_limits<std::uint32_t>::max();

[[noreturn]] void refuse_shard(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kCorrupt,
              fmt::format("shard {}: {}; delete it and let the run capture it again", file, what));
}

std::string first_line(int version) { return fmt::format("{}{}\n", kMagic, version); }

ShardHeader from_json(const nlohmann::json& json) {
  ShardHeader header;
  ShardInfo& info = header.info;
  info.boundary = integer_of<int>(json, "boundary");
  info.shard = integer_of<int>(json, "shard");
  info.fencing_token = integer_of<std::uint64_t>(json, "fencing_token");
  info.first_sequence = integer_of<std::int64_t>(json, "first_sequence");
  info.num_sequences = integer_of<std::int64_t>(json, "num_sequences");
  info.seq_len = integer_of<std::int64_t>(json, "seq_len");
  info.hidden_size = integer_of<std::int64_t>(json, "hidden_size");
  const auto dtype = dtype_from_string(json.at("dtype").get<std::string>());
  if (!dtype) throw Error(ErrorKind::kCorrupt, "unknown dtype");
  info.dtype = *dtype;
  header.file_bytes = integer_of<std::uint64_t>(json, "file_bytes");
  header.data_offset = integer_of<std::uint64_t>(json, "data_offset");
  header.root_hash = Hash128::from_hex(json.at("root_hash").get<std::string>());
  return header;
}

// Bytes of all chunks; nothing if a number is not positive, too large, or the products overflow.
std::optional<std::uint64_t> data_bytes(const ShardInfo& info) {
  if (info.boundary < 0 || info.shard < 0 || info.first_sequence < 0) return std::nullopt;
  if (info.num_sequences < 1 || info.seq_len < 1 || info.hidden_size < 1) return std::nullopt;
  std::uint64_t bytes = size_of(info.dtype);
  for (const std::int64_t factor : {info.seq_len, info.hidden_size}) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(factor), &bytes))
      return std::nullopt;
  }
  if (bytes > kMaxChunkBytes) return std::nullopt;
  if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(info.num_sequences), &bytes))
    return std::nullopt;
  return bytes;
}

}  // namespace

std::uint64_t ShardHeader::data_end() const {
  return data_offset + static_cast<std::uint64_t>(info.num_sequences) * info.bytes_per_sequence();
}

std::string encode_shard_header(const ShardHeader& header) {
  const ShardInfo& info = header.info;
  const nlohmann::ordered_json json{{"boundary", info.boundary},
                                    {"shard", info.shard},
                                    {"fencing_token", info.fencing_token},
                                    {"first_sequence", info.first_sequence},
                                    {"num_sequences", info.num_sequences},
                                    {"seq_len", info.seq_len},
                                    {"hidden_size", info.hidden_size},
                                    {"dtype", to_string(info.dtype)},
                                    {"file_bytes", header.file_bytes},
                                    {"data_offset", header.data_offset},
                                    {"root_hash", header.root_hash.hex()}};
  std::string text = first_line(kVersion) + json.dump() + "\n";
  text.resize(kShardHeaderBytes - 1, ' ');
  return text + "\n";
}

ShardHeader decode_shard_header(std::span<const std::byte> first_bytes,
                                std::uint64_t file_bytes,
                                const std::string& file) {
  if (first_bytes.size() < kShardHeaderBytes || file_bytes < kShardHeaderBytes) {
    refuse_shard(
        file,
        fmt::format("{} bytes are too few for its header, the file is truncated", file_bytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(first_bytes.data()), kShardHeaderBytes);
  if (!text.starts_with(kMagic))
    refuse_shard(file, "no header; writing it was not finished, or it is no shard");
  if (!text.starts_with(first_line(kVersion))) {
    const std::string_view version = text.substr(kMagic.size(), 8);
    throw Error(
        version.find('\n') == std::string_view::npos ? ErrorKind::kCorrupt : ErrorKind::kUsage,
        fmt::format("shard {}: its format is not version {}; use the hedgerow that wrote it, or a "
                    "later one",
                    file,
                    kVersion));
  }
  const std::size_t begin = first_line(kVersion).size();
  const std::size_t end = text.find('\n', begin);
  const auto json = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
  ShardHeader header;
  try {
    header = from_json(json);
  } catch (const nlohmann::json::exception&) {
    refuse_shard(file, "its header is damaged");
  } catch (const Error&) {
    refuse_shard(file, "its header is damaged");
  }
  const std::optional<std::uint64_t> bytes = data_bytes(header.info);
  if (!bytes || encode_shard_header(header) != text) refuse_shard(file, "its header is damaged");
  if (header.file_bytes != file_bytes) {
    refuse_shard(file,
                 fmt::format("it has {} bytes, its header says {}", file_bytes, header.file_bytes));
  }
  if (header.data_offset < kShardHeaderBytes || header.data_offset > file_bytes ||
      *bytes > file_bytes - header.data_offset) {
    refuse_shard(file, "its header puts sequences outside the file");
  }
  return header;
}

}  // namespace hedgerow::storage
