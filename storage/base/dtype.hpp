// Element types of tensors at rest. Named as safetensors names them; sizes in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hedgerow::storage {

enum class DType : std::uint8_t { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

[[nodiscard]] std::size_t size_of(DType dtype);
[[nodiscard]] std::string_view to_string(DType dtype);  // "F32", "BF16", "I64", ...
[[nodiscard]] std::optional<DType> dtype_from_string(std::string_view);  // safetensors spelling

}  // namespace hedgerow::storage
