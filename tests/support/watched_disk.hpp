// The operating system's disk, with something that happens after a part of a file was read: what
// another process does just then.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "storage/journal/disk.hpp"

namespace hedgerow::tests {

class WatchedDisk final : public storage::Disk {
 public:
  std::function<void(const std::filesystem::path&, std::size_t num_bytes)> after_read_part;

  [[nodiscard]] bool exists(const std::filesystem::path& path) const override {
    return disk_.exists(path);
  }
  [[nodiscard]] std::uint64_t size_of(const std::filesystem::path& path) const override {
    return disk_.size_of(path);
  }
  [[nodiscard]] std::optional<std::vector<storage::DiskEntry>> list(
      const std::filesystem::path& directory) const override {
    return disk_.list(directory);
  }
  [[nodiscard]] std::string read(const std::filesystem::path& path,
                                 std::uint64_t max_bytes) const override {
    return disk_.read(path, max_bytes);
  }
  [[nodiscard]] std::string read_part(const std::filesystem::path& path,
                                      std::uint64_t offset,
                                      std::uint64_t max_bytes) const override {
    std::string part = disk_.read_part(path, offset, max_bytes);
    if (after_read_part) after_read_part(path, part.size());
    return part;
  }
  void verify(const std::filesystem::path& path, const storage::FileRecord& record) const override {
    disk_.verify(path, record);
  }
  [[nodiscard]] std::uint64_t free_bytes(const std::filesystem::path& directory) const override {
    return disk_.free_bytes(directory);
  }
  [[nodiscard]] std::unique_ptr<storage::AppendFile> create_exclusive(
      const std::filesystem::path& path) override {
    return disk_.create_exclusive(path);
  }
  void sync_file(const std::filesystem::path& path) override { disk_.sync_file(path); }
  void sync_directory(const std::filesystem::path& directory) override {
    disk_.sync_directory(directory);
  }
  void make_directories(const std::filesystem::path& directory) override {
    disk_.make_directories(directory);
  }
  void publish(const std::filesystem::path& from, const std::filesystem::path& to) override {
    disk_.publish(from, to);
  }
  void write_atomically(const std::filesystem::path& path, std::string_view bytes) override {
    disk_.write_atomically(path, bytes);
  }
  void write_atomically(const std::filesystem::path& path,
                        const storage::TextWriter& write) override {
    disk_.write_atomically(path, write);
  }
  void remove(const std::filesystem::path& path) noexcept override { disk_.remove(path); }

 private:
  storage::Disk& disk_ = storage::os_disk();
};

}  // namespace hedgerow::tests
