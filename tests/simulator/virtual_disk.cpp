#include "tests/simulator/virtual_disk.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "storage/base/error.hpp"

namespace hedgerow::simulator {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;

std::string parent_of(const std::string& path) { return path.substr(0, path.rfind('/')); }
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

}  // namespace

class VirtualDisk::Appender final : public storage::AppendFile {
 public:
  Appender(VirtualDisk& disk, std::string path) : disk_(disk), path_(std::move(path)) {}

  void append(std::string_view bytes) override {
    disk_.step();
    const auto found = disk_.files_.find(path_);
    if (found == disk_.files_.end()) return;  // its name is lost; nobody will read it again
    found->second.content.append(bytes);
  }

  void sync() override {
    disk_.step();
    disk_.sync_content(path_);
  }

 private:
  VirtualDisk& disk_;
  std::string path_;
};

void VirtualDisk::sync_content(const std::string& path) {
  const auto found = files_.find(path);
  if (found == files_.end()) return;
  File& file = found->second;
  const std::size_t before = std::exchange(file.synced, file.content.size());
  const std::string_view bytes = std::string_view(file.content).substr(before);
  if (bytes.empty()) return;
  if (!is_durable(path)) {
    nameless_.emplace_back(path, bytes);
  } else if (on_synced) {
    on_synced(path, bytes);
  }
}

bool VirtualDisk::is_durable(const std::string& path) const {
  const auto found = files_.find(path);
  return found != files_.end() && found->second.synced == found->second.content.size() &&
         std::none_of(unsynced_.begin(), unsynced_.end(), [&path](const Unsynced& change) {
           return change.path == path;
         });
}

VirtualDisk::File& VirtualDisk::add(const std::string& path) {
  const auto [entry, is_new] = files_.try_emplace(path);
  if (is_new) {
    // A file makes its directories: workers' and ours are made before anything is written there.
    for (std::string child = path; child.size() > 1;) {
      const std::string parent = parent_of(child);
      if (!children_[parent].insert(name_of(child)).second) break;
      child = parent;
    }
  }
  return entry->second;
}

void VirtualDisk::erase(const std::string& path) {
  files_.erase(path);
  children_[parent_of(path)].erase(name_of(path));
}

const VirtualDisk::File& VirtualDisk::at(const std::string& path) const {
  const auto found = files_.find(path);
  if (found == files_.end()) throw storage::system_error("open", path, ENOENT);
  return found->second;
}

void VirtualDisk::put(const std::string& path, std::string content) {
  File& file = add(path);
  file.synced = content.size();
  file.content = std::move(content);
}

const std::string* VirtualDisk::content(const std::string& path) const {
  const auto found = files_.find(path);
  return found == files_.end() ? nullptr : &found->second.content;
}

void VirtualDisk::lose_power(Random& random) {
  for (auto& [path, file] : files_) {
    if (file.synced == file.content.size()) continue;
    file.content.resize(file.synced + random.below(file.content.size() - file.synced + 1));
    file.synced = file.content.size();
  }
  // Newest first; names of one directory may survive independently of each other.
  for (auto change = unsynced_.rbegin(); change != unsynced_.rend(); ++change) {
    if (random.chance(0.5)) continue;
    if (files_.count(change->path) == 0) continue;  // deleted since
    if (!change->moved_from.empty()) add(change->moved_from) = at(change->path);
    if (change->before) {
      add(change->path) = *change->before;
    } else {
      erase(change->path);
    }
  }
  unsynced_.clear();
  nameless_.clear();
}

void VirtualDisk::flip_a_bit(const std::string& path, Random& random) {
  const auto found = files_.find(path);
  if (found == files_.end() || found->second.content.empty()) return;
  found->second.is_rotten = true;
  char& byte = found->second.content[random.below(found->second.content.size())];
  byte = static_cast<char>(byte ^ (1 << random.below(8)));
}

bool VirtualDisk::exists(const fs::path& path) const {
  return files_.count(path.native()) > 0 || children_.count(path.native()) > 0;
}

std::uint64_t VirtualDisk::size_of(const fs::path& path) const {
  return at(path.native()).content.size();
}

std::optional<std::vector<storage::DiskEntry>> VirtualDisk::list(const fs::path& directory) const {
  const auto found = children_.find(directory.native());
  if (found == children_.end()) return std::nullopt;
  std::vector<storage::DiskEntry> entries;
  for (const std::string& name : found->second)
    entries.push_back({name, files_.count(directory.native() + "/" + name) == 0});
  return entries;
}

std::string VirtualDisk::read(const fs::path& path, std::uint64_t max_bytes) const {
  const std::string& content = at(path.native()).content;
  if (content.size() > max_bytes) throw Error(ErrorKind::kCorrupt, path.string() + ": too long");
  return content;
}

std::string VirtualDisk::read_part(const fs::path& path,
                                   std::uint64_t offset,
                                   std::uint64_t max_bytes) const {
  const std::string& content = at(path.native()).content;
  return content.substr(std::min<std::uint64_t>(offset, content.size()), max_bytes);
}

void VirtualDisk::verify(const fs::path& path, const storage::FileRecord& record) const {
  const std::string& content = at(path.native()).content;
  if (storage::hash128(std::as_bytes(std::span(content))) == record.root_hash) return;
  throw Error(ErrorKind::kCorrupt, path.string() + ": hash does not fit");
}

std::unique_ptr<storage::AppendFile> VirtualDisk::create_exclusive(const fs::path& path) {
  step();
  if (exists(path)) throw Error(ErrorKind::kUsage, path.string() + " exists");
  add(path.native());
  unsynced_.push_back({path.native(), parent_of(path.native()), std::nullopt, ""});
  return std::make_unique<Appender>(*this, path.native());
}

void VirtualDisk::sync_file(const fs::path& path) {
  step();
  sync_content(path.native());
}

void VirtualDisk::sync_directory(const fs::path& directory) {
  step();
  std::erase_if(unsynced_,
                [&](const Unsynced& change) { return change.directory == directory.native(); });
  for (auto& [path, bytes] : std::exchange(nameless_, {})) {
    if (parent_of(path) != directory.native()) {
      nameless_.emplace_back(std::move(path), std::move(bytes));
    } else if (on_synced) {
      on_synced(path, bytes);
    }
  }
}

void VirtualDisk::make_directories(const fs::path& directory) {
  if (children_.count(directory.native()) > 0) return;
  step();
  children_.try_emplace(directory.native());
  for (std::string child = directory.native(); child.size() > 1; child = parent_of(child)) {
    if (!children_[parent_of(child)].insert(name_of(child)).second) break;
  }
}

void VirtualDisk::publish(const fs::path& from, const fs::path& to) {
  step();
  File moved = at(from.native());
  const auto before = files_.find(to.native());
  std::optional<File> replaced;
  if (before != files_.end()) {
    replaced = before->second;
    if (replaced->content != moved.content && !replaced->is_rotten)
      collisions_.push_back(to.native());
  }
  unsynced_.push_back({to.native(), parent_of(to.native()), std::move(replaced), from.native()});
  add(to.native()) = std::move(moved);
  erase(from.native());
  sync_directory(parent_of(to.native()));
}

void VirtualDisk::write_atomically(const fs::path& path, std::string_view bytes) {
  step();
  std::optional<File> before;
  if (const auto found = files_.find(path.native()); found != files_.end()) before = found->second;
  unsynced_.push_back({path.native(), parent_of(path.native()), std::move(before), ""});
  add(path.native()) = {std::string(bytes), bytes.size()};
  sync_directory(parent_of(path.native()));
}

void VirtualDisk::write_atomically(const fs::path& path, const storage::TextWriter& write) {
  std::string text;
  write([&](std::string_view piece) { text += piece; });
  write_atomically(path, text);
}

void VirtualDisk::remove(const fs::path& path) noexcept {
  if (files_.count(path.native()) > 0) erase(path.native());
}

}  // namespace hedgerow::simulator
