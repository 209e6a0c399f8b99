// safetensors reading and writing. The header of a file from elsewhere is hostile input: everything that
// storage/README.md "safetensors checks" lists is verified before a byte of data is used (length <= 100 MB and inside
// the file, '{' first, no duplicate key (SAX), depth, count and name caps, dtype allow-list, checked shape products,
// offsets ordered, no overlap, no hole, buffer fully covered).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/dtype.hpp"

namespace hedgerow::storage {

// A view of one tensor's bytes; row-major. Lifetime: the reader that gave it.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  [[nodiscard]] std::int64_t num_elements() const;
};

// One memory-mapped file. Const methods: any thread. Throws kCorrupt naming file, tensor and rule; kNotFound.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;
  [[nodiscard]] const TensorView& at(const std::string& name) const;  // Throws kNotFound naming file and tensor
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;  // "__metadata__"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Writes tensors in name order (same input, same bytes), 8-byte aligned header, then fsync. `path` is written directly:
// callers write under attempts/ and publish, or use write_atomically semantics themselves. Throws kExhausted, kUsage.
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace hedgerow::storage
