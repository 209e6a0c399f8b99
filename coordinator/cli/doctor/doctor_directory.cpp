#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSyncs = 11;
constexpr double kSlowSyncMilliseconds = 50.0;  // a commit of the journal waits for one

// A scratch directory that goes with it, and so do those above it that were not there.
class Scratch {
 public:
  explicit Scratch(const fs::path& directory)
      : path_(directory / (".hedgerow-doctor-" + std::to_string(getpid()))) {
    for (fs::path above = fs::absolute(directory); !fs::exists(above); above = above.parent_path())
      made_.push_back(above);
    fs::create_directories(path_);
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    for (const fs::path& directory : made_) fs::remove(directory, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] fs::path file(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
  std::vector<fs::path> made_;  // the deepest first
};

Outcome look_at_rename(const Scratch& scratch) {
  storage::write_atomically(scratch.file("a"), "first");
  storage::write_atomically(scratch.file("b"), "second");
  storage::publish(scratch.file("b"), scratch.file("a"));
  if (storage::read_text(scratch.file("a")) == "second" && !fs::exists(scratch.file("b")))
    return {Level::kOk, "replaces a file"};
  return {Level::kFail, "the renamed file does not show"};
}

Outcome look_at_fsync(const Scratch& scratch) {
  std::vector<double> milliseconds;
  storage::File file = storage::File::create(scratch.file("sync"));
  const std::string page(4096, 'x');
  for (int i = 0; i < kSyncs; ++i) {
    const auto begin = Clock::now();
    file.write_all(std::as_bytes(std::span(page)));
    file.sync();
    milliseconds.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
  }
  std::nth_element(milliseconds.begin(), milliseconds.begin() + kSyncs / 2, milliseconds.end());
  const double median = milliseconds[kSyncs / 2];
  return {median < kSlowSyncMilliseconds ? Level::kOk : Level::kWarn,
          number_text(median) + " ms (median of " + std::to_string(kSyncs) + ")"};
}

// hedgerow does not need locks, but HDF5 takes them when it opens a file.
Outcome look_at_locks(const Scratch& scratch, const MachineFacts& facts) {
  const std::string setting = facts.variable("HDF5_USE_FILE_LOCKING").value_or("");
  if (setting == "FALSE" || setting == "0" || setting == "BEST_EFFORT")
    return {Level::kOk, "not taken: HDF5_USE_FILE_LOCKING=" + setting};
  const storage::File file = storage::File::create(scratch.file("lock"));
  if (flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0) return {Level::kOk, "work"};
  return {Level::kFail, "flock is refused"};
}

// Finds file systems that go with the machine or the container, by the magic numbers of statfs(2).
Outcome look_at_file_system(const fs::path& directory) {
  constexpr std::uint64_t kTmpfs = 0x01021994, kOverlay = 0x794C7630;
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0) return {Level::kWarn, "of an unknown kind"};
  const auto magic = static_cast<std::uint64_t>(status.f_type) & 0xFFFFFFFFU;
  if (magic == kTmpfs || magic == kOverlay) {
    return {Level::kWarn,
            std::string(magic == kTmpfs ? "tmpfs" : "overlayfs") +
                ": what is written there goes with the machine or the container"};
  }
  return {Level::kOk, "keeps what is written"};
}

Outcome look_at_clock(const Scratch& scratch) {
  storage::write_atomically(scratch.file("clock"), "now");
  struct stat status {};
  if (stat(scratch.file("clock").c_str(), &status) != 0) return {Level::kWarn, "no file time"};
  const double skew = std::abs(std::difftime(std::time(nullptr), status.st_mtime));
  if (skew <= kSkewSeconds) return {Level::kOk, "agrees with the file server"};
  return {Level::kWarn, "is " + duration_text(skew) + " off the file server's"};
}

Outcome look_at_space(const fs::path& directory, std::optional<std::uint64_t> needed) {
  const std::uint64_t free = storage::free_bytes(directory);
  if (!needed) {
    return {Level::kOk,
            bytes_text(free) + "; with --recipe it is held against what the plan needs"};
  }
  return {free >= *needed ? Level::kOk : Level::kFail,
          bytes_text(free) + " free, the plan needs " + bytes_text(*needed)};
}

}  // namespace

std::vector<Finding> examine_directory(const fs::path& directory,
                                       const MachineFacts& facts,
                                       std::optional<std::uint64_t> needed_bytes) {
  std::optional<Scratch> scratch;
  std::vector<Finding> findings =
      run_checks({{"directory", "choose a directory that this user may write", [&]() -> Outcome {
                     scratch.emplace(directory);
                     return {Level::kOk, fs::absolute(directory).lexically_normal().string()};
                   }}});
  if (!scratch) return findings;
  std::vector<Finding> others = run_checks({
      {"file system",
       "mount a disk or a shared file system, and put the run there",
       [&] { return look_at_file_system(directory); }},
      {"rename",
       "put the run on a POSIX file system (no object store mount)",
       [&] { return look_at_rename(*scratch); }},
      {"fsync",
       "each commit waits for one; a local or parallel file system is faster",
       [&] { return look_at_fsync(*scratch); }},
      {"file locks",
       "HDF5 takes one on each file that it opens: set HDF5_USE_FILE_LOCKING=FALSE",
       [&] { return look_at_locks(*scratch, facts); }},
      {"clock",
       "no decision depends on it, but times in logs will not line up; run NTP",
       [&] { return look_at_clock(*scratch); }},
      {"free space",
       "free space, or set plan.keep_boundaries = \"none\" or a smaller "
       "data.transfer.max_sequences",
       [&] { return look_at_space(directory, needed_bytes); }},
  });
  findings.insert(findings.end(), others.begin(), others.end());
  return findings;
}

}  // namespace hedgerow::coordinator::cli
