#include "storage/journal/disk.hpp"

#include <algorithm>
#include <span>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "storage/shards/hidden_shard.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBytesAtFirst = 4096, kBytesAtOnce = 1U << 20;

class OsAppendFile final : public AppendFile {
 public:
  explicit OsAppendFile(File file) : file_(std::move(file)) {}
  void append(std::string_view bytes) override { file_.write_all(std::as_bytes(std::span(bytes))); }
  void sync() override { file_.sync(); }

 private:
  File file_;
};

class OsDisk final : public Disk {
 public:
  [[nodiscard]] bool exists(const fs::path& path) const override {
    std::error_code unknown;  // counts as absent
    return fs::exists(path, unknown);
  }

  [[nodiscard]] std::uint64_t size_of(const fs::path& path) const override {
    std::error_code error;
    const std::uint64_t size = fs::file_size(path, error);
    if (error) throw system_error("stat", path.string(), error.value());
    return size;
  }

  [[nodiscard]] std::optional<std::vector<DiskEntry>> list(
      const fs::path& directory) const override {
    std::error_code error;
    std::vector<DiskEntry> entries;
    for (fs::directory_iterator entry(directory, error);
         !error && entry != fs::directory_iterator();
         entry.increment(error)) {
      std::error_code unknown;  // gone meanwhile, or a link to nowhere: its name is all there is
      const bool is_directory = entry->symlink_status(unknown).type() == fs::file_type::directory;
      entries.push_back({entry->path().filename().string(), is_directory});
    }
    if (error == std::errc::no_such_file_or_directory) return std::nullopt;
    if (error) throw system_error("list", directory.string(), error.value());
    return entries;
  }

  [[nodiscard]] std::string read(const fs::path& path, std::uint64_t max_bytes) const override {
    return read_text(path, max_bytes);
  }

  [[nodiscard]] std::string read_part(const fs::path& path,
                                      std::uint64_t offset,
                                      std::uint64_t max_bytes) const override {
    const File file = File::open_read(path);
    std::string part;
    std::uint64_t size = 0;
    // Until nothing more comes, and not until a size that was asked for, which may be an old one.
    // As much again each time: most files are short, and memory costs more to clear than to read.
    for (std::size_t got = 1; got > 0 && size < max_bytes; size += got) {
      const std::uint64_t more = std::clamp(size, kBytesAtFirst, kBytesAtOnce);
      part.resize(size + std::min(max_bytes - size, more));
      got = file.read_some(std::as_writable_bytes(std::span(part)).subspan(size), offset + size);
    }
    part.resize(size);
    return part;
  }

  void verify(const fs::path& path, const FileRecord& record) const override {
    if (path.extension() == ".h5") {
      static_cast<void>(ShardReader(path, record));  // throws unless the root hash fits
      return;
    }
    const Hash128 found = hash_file(path);
    if (found == record.root_hash) return;
    throw Error(
        ErrorKind::kCorrupt,
        path.string() + ": hash " + found.hex() + ", recorded is " + record.root_hash.hex());
  }

  [[nodiscard]] std::uint64_t free_bytes(const fs::path& directory) const override {
    return storage::free_bytes(directory);
  }

  [[nodiscard]] std::unique_ptr<AppendFile> create_exclusive(const fs::path& path) override {
    return std::make_unique<OsAppendFile>(File::create_exclusive(path));
  }

  void sync_file(const fs::path& path) override { storage::sync_file(path); }

  void sync_directory(const fs::path& directory) override { storage::sync_directory(directory); }

  void make_directories(const fs::path& directory) override {
    std::error_code error;
    const bool is_there = fs::is_directory(directory, error);
    if (is_there || directory.empty()) return;
    const fs::path parent = directory.parent_path();
    make_directories(parent);
    // Each new name is durable once the directory that holds it is, and not only the last one's.
    if (fs::create_directory(directory, error))
      storage::sync_directory(parent.empty() ? fs::path(".") : parent);
    if (error) throw system_error("create directory", directory.string(), error.value());
  }

  void publish(const fs::path& from, const fs::path& to) override { storage::publish(from, to); }

  void write_atomically(const fs::path& path, std::string_view bytes) override {
    storage::write_atomically(path, bytes);
  }

  void write_atomically(const fs::path& path, const TextWriter& write) override {
    storage::write_atomically(path, write);
  }

  void remove(const fs::path& path) noexcept override {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

}  // namespace

Disk& os_disk() {
  static OsDisk disk;
  return disk;
}

}  // namespace hedgerow::storage
