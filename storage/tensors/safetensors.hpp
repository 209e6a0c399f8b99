// safetensors reading and writing. The header of a file from elsewhere is hostile input: everything
// that storage/README.md "safetensors checks" lists is verified before a byte of data is used
// (length <= 100 MB and inside the file, '{' first, no duplicate key (SAX), depth, count and name
// caps, dtype allow-list, checked shape products, offsets ordered, no overlap, no hole, buffer
// fully covered).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "storage/base/dtype.hpp"

namespace hedgerow::storage {

// A view of one tensor's bytes; row-major. Lifetime: the reader that gave it. In files that others
// wrote the bytes need not lie at a multiple of the element size.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
  [[nodiscard]] std::int64_t num_elements() const;
};

// Bytes of a view that will not be read again soon: their pages leave this process's memory (not
// the system's cache) until they are.
void release_pages(std::span<const std::byte> mapped);

// One memory-mapped file. Const methods: any thread. Throws kCorrupt naming file, tensor and rule;
// kNotFound. A file that is cut while it is mapped ends the process (SIGBUS): model files and
// committed files never change.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;
  ~SafetensorsFile();

  [[nodiscard]] const std::map<std::string, TensorView>& tensors() const;
  [[nodiscard]] const TensorView& at(
      const std::string& name) const;  // Throws kNotFound naming file and tensor
  // Tensors of element types that are not read, by name: "'F8_E4M3'", ... Not among tensors().
  [[nodiscard]] const std::map<std::string, std::string>& unread() const;
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const;  // "__metadata__"
  [[nodiscard]] std::span<const std::byte> header()
      const;  // length field and JSON, for fingerprints
  [[nodiscard]] std::uint64_t file_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Same input, same bytes: wide element types first (so that every tensor is aligned), then by name;
// the header is padded to 8 bytes; then fsync. `path` is written directly, and removed if that
// fails: callers write under attempts/ and publish. Throws kExhausted (disk full), kUsage (may not
// write there).
void write_safetensors(const std::filesystem::path& path,
                       const std::map<std::string, TensorView>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace hedgerow::storage
