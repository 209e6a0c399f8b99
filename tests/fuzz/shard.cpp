// What is checked of a hidden-state shard before HDF5 opens it: the header in its first 4 KiB
// against the file's size, and that all that is hashed and read later lies inside the file. An
// input of 4 KiB or more is a file's beginning; a shorter one the JSON line of a header that is
// otherwise in order, because any byte out of place there is refused.
#include "storage/base/error.hpp"
#include "storage/shards/shard_header.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace hedgerow;

void decode(std::string_view file, std::uint64_t file_bytes) {
  const auto bytes = std::as_bytes(std::span(file))
                         .first(std::min<std::size_t>(file.size(), storage::kShardHeaderBytes));
  try {
    const storage::ShardHeader header = storage::decode_shard_header(bytes, file_bytes, "s.h5");
    fuzz::expect(header.file_bytes == file_bytes, "the size is the file's");
    fuzz::expect(header.data_offset >= storage::kShardHeaderBytes,
                 "chunks begin behind the header");
    fuzz::expect(header.data_end() >= header.data_offset && header.data_end() <= file_bytes,
                 "chunks end in the file");
    fuzz::expect(
        header.info.bytes_per_sequence() * static_cast<std::size_t>(header.info.num_sequences) ==
            header.data_end() - header.data_offset,
        "sizes do not wrap around");
    fuzz::expect(storage::encode_shard_header(header) == file.substr(0, storage::kShardHeaderBytes),
                 "one value, one text");
  } catch (const storage::Error& error) {
    fuzz::expect(
        error.kind() == storage::ErrorKind::kCorrupt || error.kind() == storage::ErrorKind::kUsage,
        "a wrong shard is kCorrupt, a later format kUsage");
  }
}

// The number after "file_bytes", so that the file can have that size.
std::uint64_t claimed_size(std::string_view json) {
  constexpr std::string_view kKey = "\"file_bytes\":";
  const std::size_t at = json.find(kKey);
  std::uint64_t size = 0;
  for (std::size_t i = at + kKey.size(); at != std::string_view::npos && i < json.size(); ++i) {
    if (json[i] < '0' || json[i] > '9') break;
    size = size * 10 + static_cast<std::uint64_t>(json[i] - '0');
  }
  return size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  decode(input, size);
  if (size >= storage::kShardHeaderBytes - 40) return 0;
  std::string header = "hedgerow hidden shard 1\n" + std::string(input) + "\n";
  header.resize(storage::kShardHeaderBytes - 1, ' ');
  decode(header + "\n", claimed_size(input));
  return 0;
}
