#include "storage/files/file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <random>
#include <thread>
#include <utility>

#include "storage/base/error.hpp"
#include "storage/files/scoped_file.hpp"

namespace hedgerow::storage {
namespace {

namespace fs = std::filesystem;

// Linux transfers at most 0x7ffff000 bytes a call; 1 GiB keeps clear of it.
constexpr std::size_t kMaxBytesPerCall = std::size_t{1} << 30;
constexpr std::size_t kWriteBytes = std::size_t{1} << 20;  // pieces are gathered up to it
constexpr std::chrono::milliseconds kFirstPoll{10};
constexpr std::chrono::milliseconds kLongestPoll{1000};

int open_descriptor(const fs::path& path, int flags, int mode = 0644) {
  while (true) {
    const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC, mode);
    if (descriptor >= 0 || errno != EINTR) return descriptor;
  }
}

void sync_descriptor(int descriptor, const fs::path& path) {
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    throw system_error("fsync of", path.string(), errno);
  }
}

fs::path directory_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::string random_suffix() {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device device;
  std::string suffix;
  for (int i = 0; i < 16; ++i) suffix += kDigits[device() % kDigits.size()];
  return suffix;
}

bool same_file(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size;
}

}  // namespace

std::string why_not_a_file(const fs::path& path) {
  std::error_code unknown;  // the code that opens it says why
  const char* kind = nullptr;
  switch (fs::status(path, unknown).type()) {
    case fs::file_type::directory:
      kind = "a directory";
      break;
    case fs::file_type::fifo:
      kind = "a FIFO";
      break;
    case fs::file_type::socket:
      kind = "a socket";
      break;
    case fs::file_type::block:
    case fs::file_type::character:
      kind = "a device";
      break;
    default:
      return {};
  }
  return std::string("is ") + kind + "; name a regular file";
}

void require_file(const fs::path& path) {
  const std::string why = why_not_a_file(path);
  if (!why.empty()) throw Error(ErrorKind::kUsage, path.string() + ": " + why);
}

void let_large_writes_fail() { std::signal(SIGXFSZ, SIG_IGN); }

File::File(int descriptor, fs::path path) : descriptor_(descriptor), path_(std::move(path)) {}

File File::open_read(const fs::path& path) {
  require_file(path);
  const int descriptor = open_descriptor(path, O_RDONLY);
  if (descriptor < 0) throw system_error("open", path.string(), errno);
  return {descriptor, path};
}

File File::create(const fs::path& path) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_TRUNC);
  if (descriptor < 0) throw system_error("create", path.string(), errno);
  return {descriptor, path};
}

File File::create_exclusive(const fs::path& path, int mode) {
  const int descriptor = open_descriptor(path, O_WRONLY | O_CREAT | O_EXCL, mode);
  if (descriptor < 0 && errno == EEXIST) {
    throw Error(ErrorKind::kUsage,
                "create " + path.string() + ": it exists already; another process made it first");
  }
  if (descriptor < 0) throw system_error("create", path.string(), errno);
  return {descriptor, path};
}

File File::open_append(const fs::path& path) {
  require_file(path);
  const int descriptor = open_descriptor(path, O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW);
  if (descriptor < 0) throw system_error("open for appending", path.string(), errno);
  return {descriptor, path};
}

File File::open_update(const fs::path& path) {
  const int descriptor = open_descriptor(path, O_RDWR);
  if (descriptor < 0) throw system_error("open for writing", path.string(), errno);
  return {descriptor, path};
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
  }
  return *this;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::uint64_t File::size() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) throw system_error("stat", path_.string(), errno);
  return static_cast<std::uint64_t>(status.st_size);
}

void File::write_all(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxBytesPerCall));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write", path_.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void File::write_at(std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_,
                                     bytes.data(),
                                     std::min(bytes.size(), kMaxBytesPerCall),
                                     static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw system_error("write", path_.string(), errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

std::size_t File::read_some(std::span<std::byte> bytes, std::uint64_t offset) const {
  for (;;) {
    const ssize_t got = ::pread(descriptor_,
                                bytes.data(),
                                std::min(bytes.size(), kMaxBytesPerCall),
                                static_cast<off_t>(offset));
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno != EINTR) throw system_error("read", path_.string(), errno);
  }
}

void File::read_exact(std::span<std::byte> bytes, std::uint64_t offset) const {
  const std::size_t wanted = bytes.size();
  std::size_t done = 0;
  while (done < wanted) {
    const std::size_t got = read_some(bytes.subspan(done), offset + done);
    if (got == 0) {
      throw Error(ErrorKind::kCorrupt,
                  path_.string() + ": ends at byte " + std::to_string(offset + done) +
                      ", expected at least " + std::to_string(offset + wanted) +
                      "; the file is truncated");
    }
    done += got;
  }
}

void File::sync() { sync_descriptor(descriptor_, path_); }

void File::close() {
  const int descriptor = std::exchange(descriptor_, -1);
  // Linux frees the descriptor also when close() is interrupted, so EINTR must not be retried.
  if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) {
    throw system_error("close", path_.string(), errno);
  }
}

std::string read_text(const fs::path& path, std::uint64_t max_bytes) {
  const File file = File::open_read(path);
  const std::uint64_t size = file.size();
  if (size > max_bytes) {
    throw Error(ErrorKind::kCorrupt,
                path.string() + ": " + std::to_string(size) + " bytes, expected at most " +
                    std::to_string(max_bytes));
  }
  std::string text(size, '\0');
  file.read_exact(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

void sync_directory(const fs::path& directory) {
  const int descriptor = open_descriptor(directory, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) throw system_error("open directory", directory.string(), errno);
  int error_number = 0;
  while (::fsync(descriptor) != 0) {
    if (errno == EINTR) continue;
    // Some network file systems cannot sync a directory and make names durable by themselves.
    if (errno != EINVAL) error_number = errno;
    break;
  }
  ::close(descriptor);
  if (error_number != 0) throw system_error("fsync of directory", directory.string(), error_number);
}

void publish(const fs::path& from, const fs::path& to) {
  struct stat before {};
  if (::stat(from.c_str(), &before) != 0) throw system_error("publish", from.string(), errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error_number = errno;
    // A client of a network file system that sent the rename twice reports ENOENT for the second.
    struct stat after {};
    const bool done =
        error_number == ENOENT && ::stat(to.c_str(), &after) == 0 && same_file(before, after);
    if (!done) {
      throw system_error("rename " + from.string() + " to", to.string(), error_number);
    }
  }
  const fs::path target = directory_of(to);
  sync_directory(target);
  const fs::path source = directory_of(from);
  if (source != target) sync_directory(source);
}

bool publish_first(const fs::path& from, const fs::path& to) {
  if (::link(from.c_str(), to.c_str()) == 0) {
    std::error_code ignored;  // a second name of the same file does no harm
    fs::remove(from, ignored);
    sync_directory(directory_of(to));
    return true;
  }
  if (errno == EEXIST) return false;
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS)
    throw system_error("link " + from.string() + " to", to.string(), errno);
  publish(from, to);
  return true;
}

void write_atomically(const fs::path& path, const TextWriter& write, int mode) {
  const fs::path temporary =
      directory_of(path) / ("." + path.filename().string() + ".tmp-" + random_suffix());
  File file = File::create_exclusive(temporary, mode);
  ScopedFile unpublished(temporary);
  std::string waiting;
  const auto write_waiting = [&] {
    file.write_all(std::as_bytes(std::span(waiting)));
    waiting.clear();
  };
  write([&](std::string_view piece) {
    if (waiting.size() + piece.size() >= kWriteBytes) write_waiting();
    if (piece.size() >= kWriteBytes) {
      file.write_all(std::as_bytes(std::span(piece)));
    } else {
      waiting += piece;
    }
  });
  write_waiting();
  file.sync();
  file.close();
  publish(temporary, path);
  unpublished.keep();
}

void write_atomically(const fs::path& path, std::string_view bytes, int mode) {
  write_atomically(
      path, [&](const TextSink& sink) { sink(bytes); }, mode);
}

void sync_file(const fs::path& path) {
  File file = File::open_read(path);
  file.sync();
  file.close();
}

void wait_until_visible(const fs::path& path, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::chrono::milliseconds pause = kFirstPoll;
  while (true) {
    // open, not stat: opening is what makes a network file system ask its server again.
    // O_NONBLOCK, because opening a FIFO waits for a writer.
    const int descriptor = open_descriptor(path, O_RDONLY | O_NONBLOCK);
    if (descriptor >= 0) {
      ::close(descriptor);
      require_file(path);
      return;
    }
    const int error_number = errno;
    if (error_number != ENOENT && error_number != ESTALE) {
      throw system_error("open", path.string(), error_number);
    }
    if (std::chrono::steady_clock::now() + pause > deadline) {
      throw Error(ErrorKind::kNotFound,
                  path.string() + ": still absent after " + std::to_string(timeout.count()) +
                      " ms, though the journal names it; run 'hedgerow check' on the run");
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPoll);
  }
}

std::uint64_t free_bytes(const fs::path& directory) {
  fs::path existing = fs::absolute(directory);
  while (!fs::exists(existing) && existing.has_relative_path()) existing = existing.parent_path();
  struct statvfs status {};
  if (::statvfs(existing.c_str(), &status) != 0) {
    throw system_error("free space of", existing.string(), errno);
  }
  return static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
}

}  // namespace hedgerow::storage
