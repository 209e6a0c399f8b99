// The JSON header of a safetensors file as checked values: a pure function of bytes, so that tests
// and fuzzers reach every rule of storage/README.md "safetensors checks" without a file. Used by
// SafetensorsFile and by no one else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "storage/base/dtype.hpp"

namespace hedgerow::storage {

// Limits of a header that we accept. The first is the reference implementation's; the others bound
// memory.
inline constexpr std::uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr std::size_t kMaxSafetensorsTensors = 1'000'000;
inline constexpr std::size_t kMaxSafetensorsNameBytes = 1024;
inline constexpr std::size_t kMaxSafetensorsDimensions = 16;

struct SafetensorsEntry {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;  // in the buffer that follows the header
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  // Tensors of element types that are not read (8-bit floats, complex numbers, ...): the type's
  // word in quotes, by name. Files carry them beside the weights that are wanted, so such a tensor
  // is refused only when it is asked for.
  std::map<std::string, std::string> unread;
  std::map<std::string, std::string> metadata;
};

// The length field at the start of a file of file_bytes; returns the header's length without the
// field itself. Throws kCorrupt naming `file` and the rule.
[[nodiscard]] std::uint64_t safetensors_header_length(std::string_view first_bytes,
                                                      std::uint64_t file_bytes,
                                                      const std::string& file);

// Checks everything else. buffer_bytes is what follows the header. Throws kCorrupt naming `file`,
// tensor and rule.
[[nodiscard]] SafetensorsHeader parse_safetensors_header(std::string_view json,
                                                         std::uint64_t buffer_bytes,
                                                         const std::string& file);

}  // namespace hedgerow::storage
