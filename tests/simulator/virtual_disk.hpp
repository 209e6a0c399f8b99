// A disk in memory that does what the kernel and a network file system may do: it dies before,
// between or after the steps of an operation, forgets what was never synced when its host loses
// power, fills up, and loses or corrupts files. Production code writes to it through storage::Disk;
// simulated workers put whole files on it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "storage/journal/disk.hpp"
#include "tests/simulator/random.hpp"

namespace hedgerow::simulator {

// The process that was writing is gone; nothing of it runs any more.
struct Crash {};

class VirtualDisk final : public storage::Disk {
 public:
  // Asked before each step that changes something; may throw Crash or storage::Error.
  std::function<void()> before_step;
  // The bytes that a sync has made durable, in order: both they and their file's name.
  std::function<void(const std::string& path, std::string_view bytes)> on_synced;
  std::uint64_t free = std::uint64_t{1} << 40;

  // As workers do it: written, synced, closed.
  void put(const std::string& path, std::string content);
  [[nodiscard]] const std::string* content(const std::string& path) const;  // null: no such file
  // Its content and its name survive a loss of power.
  [[nodiscard]] bool is_durable(const std::string& path) const;
  // The host of whoever wrote to it loses power: of what was not synced, chance decides.
  void lose_power(Random& random);
  void flip_a_bit(const std::string& path, Random& random);
  // Files published over sound ones of another content: two writers had one name.
  [[nodiscard]] const std::vector<std::string>& collisions() const { return collisions_; }

  [[nodiscard]] bool exists(const std::filesystem::path& path) const override;
  [[nodiscard]] std::uint64_t size_of(const std::filesystem::path& path) const override;
  [[nodiscard]] std::optional<std::vector<storage::DiskEntry>> list(
      const std::filesystem::path& directory) const override;
  [[nodiscard]] std::string read(const std::filesystem::path& path,
                                 std::uint64_t max_bytes) const override;
  [[nodiscard]] std::string read_part(const std::filesystem::path& path,
                                      std::uint64_t offset,
                                      std::uint64_t max_bytes) const override;
  void verify(const std::filesystem::path& path, const storage::FileRecord& record) const override;
  [[nodiscard]] std::uint64_t free_bytes(const std::filesystem::path&) const override {
    return free;
  }
  [[nodiscard]] std::unique_ptr<storage::AppendFile> create_exclusive(
      const std::filesystem::path& path) override;
  void sync_file(const std::filesystem::path& path) override;
  void sync_directory(const std::filesystem::path& directory) override;
  void make_directories(const std::filesystem::path& directory) override;
  void publish(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void write_atomically(const std::filesystem::path& path, std::string_view bytes) override;
  void write_atomically(const std::filesystem::path& path,
                        const storage::TextWriter& write) override;
  void remove(const std::filesystem::path& path) noexcept override;

 private:
  class Appender;
  struct File {
    std::string content;
    std::size_t synced = 0;
    bool is_rotten = false;
  };
  // What a loss of power may undo: `path` gets its earlier content back, or none.
  struct Unsynced {
    std::string path, directory;
    std::optional<File> before;
    std::string moved_from;  // gets the content back then
  };
  void sync_content(const std::string& path);
  void step() const {
    if (before_step) before_step();
  }
  File& add(const std::string& path);
  void erase(const std::string& path);
  [[nodiscard]] const File& at(const std::string& path) const;

  std::unordered_map<std::string, File> files_;
  std::unordered_map<std::string, std::set<std::string>> children_;  // by directory
  std::vector<Unsynced> unsynced_;
  std::vector<std::pair<std::string, std::string>> nameless_;  // synced bytes of unsynced names
  std::vector<std::string> collisions_;
};

}  // namespace hedgerow::simulator
