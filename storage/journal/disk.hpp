// The file system as the commit protocol sees it: journal, commits and restart go through this
// interface and nothing else, so that a simulator runs them on a disk that loses power, fills up
// and forgets, without a second implementation of either. Everything that changes something is
// durable when it returns, but for AppendFile::append, which sync() makes durable.
// Data that is large (shards, checkpoints, artifacts) never passes through here: workers write it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/files/file_record.hpp"
#include "storage/files/text_writer.hpp"

namespace hedgerow::storage {

// A file that only grows. One thread. The destructor closes and ignores the error.
class AppendFile {
 public:
  virtual ~AppendFile() = default;
  virtual void append(std::string_view bytes) = 0;  // Throws kExhausted, kUnavailable
  virtual void sync() = 0;                          // a failure is final: drop the file
};

inline constexpr std::uint64_t kMaxTextBytes = 1U << 30;
inline constexpr std::uint64_t kToTheEnd = std::numeric_limits<std::uint64_t>::max();

struct DiskEntry {
  std::string name;  // without its directory
  bool is_directory = false;
};

// Paths are those of RunLayout. Errors as in storage/files/file.hpp, unless said otherwise.
class Disk {
 public:
  virtual ~Disk() = default;

  [[nodiscard]] virtual bool exists(const std::filesystem::path& path) const = 0;
  // In bytes. Throws kNotFound.
  [[nodiscard]] virtual std::uint64_t size_of(const std::filesystem::path& path) const = 0;
  // nullopt: there is no such directory. Links are not followed.
  [[nodiscard]] virtual std::optional<std::vector<DiskEntry>> list(
      const std::filesystem::path& directory) const = 0;
  // Throws kCorrupt if it is longer.
  [[nodiscard]] virtual std::string read(const std::filesystem::path& path,
                                         std::uint64_t max_bytes = kMaxTextBytes) const = 0;
  // At most `max_bytes` from `offset` on: fewer where the file ends before. For files of our own
  // that grow without a bound.
  [[nodiscard]] virtual std::string read_part(const std::filesystem::path& path,
                                              std::uint64_t offset,
                                              std::uint64_t max_bytes = kToTheEnd) const = 0;
  // Throws kCorrupt unless the file's bytes are those of `record` (a shard's: its root hash).
  virtual void verify(const std::filesystem::path& path, const FileRecord& record) const = 0;
  // Bytes that may still be written below `directory`.
  [[nodiscard]] virtual std::uint64_t free_bytes(const std::filesystem::path& directory) const = 0;

  // Throws kUsage if the file exists. Its name is durable only after sync_directory.
  [[nodiscard]] virtual std::unique_ptr<AppendFile> create_exclusive(
      const std::filesystem::path& path) = 0;
  // What others wrote to it, too.
  virtual void sync_file(const std::filesystem::path& path) = 0;
  virtual void sync_directory(const std::filesystem::path& directory) = 0;
  virtual void make_directories(const std::filesystem::path& directory) = 0;
  virtual void publish(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void write_atomically(const std::filesystem::path& path, std::string_view bytes) = 0;
  virtual void write_atomically(const std::filesystem::path& path, const TextWriter& write) = 0;
  // A missing file is no error, and neither is one that stays: the caller tries again later.
  virtual void remove(const std::filesystem::path& path) noexcept = 0;
};

// The operating system's. Any thread.
[[nodiscard]] Disk& os_disk();

}  // namespace hedgerow::storage
