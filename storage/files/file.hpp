// Files as the rest of hedgerow touches them: every write, fsync, close and rename is checked, a
// failed fsync is final (the kernel marks the pages clean, so a retry would lie), and publishing is
// tmp + fsync + rename + fsync(dir).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "storage/files/text_writer.hpp"

namespace hedgerow::storage {

// "is a FIFO; name a regular file" and the like of what is there, through links, and cannot be read
// as a file: a FIFO waits for a writer that may never come, a device may be without an end or act
// on being opened. Empty for a regular file, and where nothing is.
[[nodiscard]] std::string why_not_a_file(const std::filesystem::path& path);
void require_file(const std::filesystem::path& path);  // Throws kUsage naming path and reason

// A write beyond RLIMIT_FSIZE (ulimit -f) fails with EFBIG, as one on a full disk does, instead of
// ending the process. Programs that this one starts take it over unless they say otherwise.
void let_large_writes_fail();

// An owned descriptor. Move-only; the destructor closes and ignores the error, so writers call
// close() themselves.
class File {
 public:
  static File open_read(
      const std::filesystem::path& path);  // Throws kNotFound, kUsage (permission, not a regular
                                           // file), kUnavailable
  static File create(const std::filesystem::path& path);  // O_CREAT|O_TRUNC
  static File create_exclusive(const std::filesystem::path& path,
                               int mode = 0644);               // O_EXCL; EEXIST -> kUsage
  static File open_append(const std::filesystem::path& path);  // made when absent; no link
  static File open_update(const std::filesystem::path& path);  // to read and write_at; must exist

  File(File&& other) noexcept;
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File();

  [[nodiscard]] int descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::uint64_t size() const;

  void write_all(std::span<const std::byte> bytes);
  void write_at(std::span<const std::byte> bytes, std::uint64_t offset);  // not after open_append
  // At most bytes.size() at offset; how many there were: 0 at the file's end. Any thread.
  [[nodiscard]] std::size_t read_some(std::span<std::byte> bytes, std::uint64_t offset) const;
  // Reads exactly bytes.size() at offset. Throws kCorrupt on a short file. Any thread.
  void read_exact(std::span<std::byte> bytes, std::uint64_t offset) const;
  void sync();   // fsync; a failure is final: throws and the file must be dropped
  void close();  // checked

 private:
  File(int descriptor, std::filesystem::path path);
  int descriptor_ = -1;
  std::filesystem::path path_;
};

[[nodiscard]] std::string read_text(const std::filesystem::path& path,
                                    std::uint64_t max_bytes = 1U << 30);
void sync_directory(const std::filesystem::path& directory);
// Makes `to` name the bytes of `from` durably: rename, then fsync of both directories. `from` must
// already be synced.
void publish(const std::filesystem::path& from, const std::filesystem::path& to);
// publish() unless `to` is there: then false, and `from` stays. Of several calls at once one gets
// true (where a file system has hard links; else the last one wins).
[[nodiscard]] bool publish_first(const std::filesystem::path& from,
                                 const std::filesystem::path& to);
// Writes bytes beside `path` under a unique temporary name, syncs, publishes. The old content stays
// until the rename.
void write_atomically(const std::filesystem::path& path, std::string_view bytes, int mode = 0644);
// The same of a text that comes in pieces; no more than some MiB of it are in memory.
void write_atomically(const std::filesystem::path& path, const TextWriter& write, int mode = 0644);
// write_atomically's counterpart for large files made by a callback's own means: fsync by path.
void sync_file(const std::filesystem::path& path);

// For files that a committed record names: retries ENOENT and ESTALE until the deadline, because
// attribute caches of network file systems show a rename late. Throws kNotFound after it,
// kUsage for what is no regular file.
void wait_until_visible(const std::filesystem::path& path, std::chrono::milliseconds timeout);

// Bytes an unprivileged process may still write there; of the nearest existing ancestor if
// `directory` is yet to be made.
[[nodiscard]] std::uint64_t free_bytes(const std::filesystem::path& directory);

}  // namespace hedgerow::storage
