#include "storage/base/dtype.hpp"

#include <array>

namespace hedgerow::storage {
namespace {

struct Entry {
  DType dtype;
  std::string_view word;
  std::size_t bytes;
};

constexpr std::array<Entry, 10> kEntries{{
    {DType::kF64, "F64", 8},
    {DType::kF32, "F32", 4},
    {DType::kF16, "F16", 2},
    {DType::kBF16, "BF16", 2},
    {DType::kI64, "I64", 8},
    {DType::kI32, "I32", 4},
    {DType::kI16, "I16", 2},
    {DType::kI8, "I8", 1},
    {DType::kU8, "U8", 1},
    {DType::kBool, "BOOL", 1},
}};

const Entry& entry(DType dtype) { return kEntries.at(static_cast<std::size_t>(dtype)); }

}  // namespace

std::size_t size_of(DType dtype) { return entry(dtype).bytes; }

std::string_view to_string(DType dtype) { return entry(dtype).word; }

std::optional<DType> dtype_from_string(std::string_view word) {
  for (const Entry& known : kEntries) {
    if (known.word == word) return known.dtype;
  }
  return std::nullopt;
}

}  // namespace hedgerow::storage
