// The header of a safetensors file. An input that begins with '{' is a header, a newline and, in
// digits, how many bytes follow it in the file; any other is a whole file.
#include <algorithm>
#include <charconv>
#include <vector>

#include "storage/base/error.hpp"
#include "storage/tensors/safetensors_header.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

using namespace hedgerow;

void parse(std::string_view json, std::uint64_t buffer_bytes) {
  const storage::SafetensorsHeader header =
      storage::parse_safetensors_header(json, buffer_bytes, "f");
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (const auto& [name, entry] : header.tensors) {
    unsigned __int128 bytes = storage::size_of(entry.dtype);
    for (const std::int64_t dimension : entry.shape) {
      fuzz::expect(dimension >= 0, "no dimension is negative");
      bytes *= static_cast<std::uint64_t>(dimension);
    }
    fuzz::expect(entry.begin <= entry.end && entry.end <= buffer_bytes, "a tensor is in the file");
    fuzz::expect(entry.end - entry.begin == bytes, "its bytes are those of dtype and shape");
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t end = 0;
  for (const auto& range : ranges) {
    // The bytes between belong to tensors of types that are not read, if there are any.
    fuzz::expect(header.unread.empty() ? range.first == end : range.first >= end,
                 "no hole and no overlap");
    end = range.second;
  }
  fuzz::expect(header.unread.empty() ? end == buffer_bytes : end <= buffer_bytes,
               "every byte belongs to a tensor");
}

void parse_file(std::string_view file) {
  const std::uint64_t length =
      storage::safetensors_header_length(file.substr(0, 8), file.size(), "f");
  fuzz::expect(length <= file.size() - 8, "the header is in the file");
  parse(file.substr(8, length), file.size() - 8 - length);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = fuzz::text_of(data, size);
  try {
    if (!input.starts_with('{')) {
      parse_file(input);
      return 0;
    }
    const std::size_t newline = std::min(input.rfind('\n'), input.size());
    const std::string_view digits = input.substr(std::min(newline + 1, input.size()));
    std::uint64_t buffer_bytes = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), buffer_bytes);
    parse(input.substr(0, newline), buffer_bytes);
  } catch (const storage::Error& error) {
    fuzz::expect(error.kind() == storage::ErrorKind::kCorrupt, "a wrong file is kCorrupt");
  }
  return 0;
}
