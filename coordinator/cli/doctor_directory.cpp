#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "coordinator/cli/doctor.hpp"
#include "coordinator/cli/format.hpp"
#include "storage/error.hpp"
#include "storage/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSyncs = 11;
constexpr double kSlowSyncMilliseconds = 50.0;  // a commit of the journal waits for one
constexpr std::size_t kProbeBytes = 64U << 20U;
constexpr double kSlowMegabytesPerSecond = 100.0;
constexpr double kSkewSeconds = 2.0;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// A scratch directory that goes with it.
class Scratch {
 public:
  explicit Scratch(const fs::path& directory)
      : path_(directory / (".hedgerow-doctor-" + std::to_string(getpid()))) {
    fs::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] fs::path file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

Finding check_rename(const Scratch& scratch) {
  storage::write_atomically(scratch.file("a"), "first");
  storage::write_atomically(scratch.file("b"), "second");
  storage::publish(scratch.file("b"), scratch.file("a"));
  const bool replaced =
      storage::read_text(scratch.file("a")) == "second" && !fs::exists(scratch.file("b"));
  if (replaced) return {"rename", Level::kOk, "replaces atomically", ""};
  return {"rename",
          Level::kFail,
          "the renamed file does not show",
          "put the run on a POSIX file system (no object store mount)"};
}

Finding check_fsync(const Scratch& scratch) {
  std::vector<double> milliseconds;
  storage::File file = storage::File::create(scratch.file("sync"));
  const std::string page(4096, 'x');
  for (int i = 0; i < kSyncs; ++i) {
    const auto begin = Clock::now();
    file.write_all(std::as_bytes(std::span(page)));
    file.sync();
    milliseconds.push_back(seconds_since(begin) * 1000.0);
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kSyncs / 2, milliseconds.end());
  const double median = milliseconds[kSyncs / 2];
  const std::string found = number_text(median) + " ms (median of " + std::to_string(kSyncs) + ")";
  if (median < kSlowSyncMilliseconds) return {"fsync", Level::kOk, found, ""};
  return {"fsync",
          Level::kWarn,
          found,
          "each commit waits for one; a local or parallel file system is faster"};
}

Finding check_write_speed(const Scratch& scratch) {
  const std::string bytes(kProbeBytes, 'x');
  const auto begin = Clock::now();
  storage::File file = storage::File::create(scratch.file("bulk"));
  file.write_all(std::as_bytes(std::span(bytes)));
  file.sync();
  const double speed = static_cast<double>(kProbeBytes) / 1e6 / seconds_since(begin);
  const std::string found = std::to_string(std::lround(speed)) + " MB/s";
  if (speed > kSlowMegabytesPerSecond) return {"write speed", Level::kOk, found, ""};
  return {"write speed",
          Level::kWarn,
          found,
          "captured hidden states will wait for this disk; use a faster one"};
}

Finding check_locks(const Scratch& scratch) {
  const storage::File file = storage::File::create(scratch.file("lock"));
  if (flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0)
    return {"file locks", Level::kOk, "work", ""};
  return {"file locks",
          Level::kWarn,
          "flock is refused",
          "hedgerow does not need them, but HDF5 does: set HDF5_USE_FILE_LOCKING=FALSE"};
}

Finding check_clock(const Scratch& scratch) {
  storage::write_atomically(scratch.file("clock"), "now");
  struct stat status {};
  if (stat(scratch.file("clock").c_str(), &status) != 0) {
    return {"clock", Level::kWarn, "no modification time", "check the mount"};
  }
  const double skew = std::abs(std::difftime(std::time(nullptr), status.st_mtime));
  if (skew <= kSkewSeconds) return {"clock", Level::kOk, "agrees with the file server", ""};
  return {"clock",
          Level::kWarn,
          "is " + duration_text(skew) + " off the file server's",
          "no decision depends on it, but times in logs will not line up; run NTP"};
}

Finding check_space(const fs::path& directory, std::optional<std::uint64_t> needed) {
  const std::uint64_t free = storage::free_bytes(directory);
  if (!needed) return {"free space", Level::kOk, bytes_text(free), ""};
  const std::string found = bytes_text(free) + " free, the plan needs " + bytes_text(*needed);
  if (free >= *needed) return {"free space", Level::kOk, found, ""};
  return {"free space",
          Level::kFail,
          found,
          "free space, or set plan.keep_boundaries = \"none\" or a smaller "
          "data.transfer.max_sequences"};
}

}  // namespace

std::vector<Finding> examine_directory(const fs::path& directory,
                                       std::optional<std::uint64_t> needed_bytes) {
  std::vector<Finding> findings;
  const auto guarded = [&](const char* name, const auto& check) {
    try {
      findings.push_back(check());
    } catch (const std::exception& error) {
      findings.push_back(
          {name, Level::kFail, error.what(), "choose a directory that this user may write"});
    }
  };
  std::optional<Scratch> scratch;
  guarded("directory", [&]() -> Finding {
    scratch.emplace(directory);
    return {"directory", Level::kOk, fs::absolute(directory).lexically_normal().string(), ""};
  });
  if (!scratch) return findings;
  guarded("rename", [&] { return check_rename(*scratch); });
  guarded("fsync", [&] { return check_fsync(*scratch); });
  guarded("write speed", [&] { return check_write_speed(*scratch); });
  guarded("file locks", [&] { return check_locks(*scratch); });
  guarded("clock", [&] { return check_clock(*scratch); });
  guarded("free space", [&] { return check_space(directory, needed_bytes); });
  return findings;
}

}  // namespace hedgerow::coordinator::cli
