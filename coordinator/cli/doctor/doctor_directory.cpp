#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <thread>

#include "coordinator/cli/doctor/doctor.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "storage/base/error.hpp"
#include "storage/base/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kSyncs = 11;
constexpr int kRenames = 200;
constexpr std::uint64_t kWantedFiles = 10'000;
constexpr double kSlowSyncMilliseconds = 50.0;  // a commit of the journal waits for one
constexpr std::size_t kProbeBytes = 64U << 20U;
constexpr double kSlowMegabytesPerSecond = 100.0;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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

// One thread replaces a file by renames, another reads it all the while and must always find one
// whole version.
int misreads_while_renaming(const Scratch& scratch) {
  const fs::path shown = scratch.file("renamed");
  const std::string versions[] = {std::string(8192, 'a'), std::string(8192, 'b')};
  storage::write_atomically(shown, versions[0]);
  std::atomic<bool> is_over{false};
  int misreads = 0;
  std::jthread reader([&] {
    while (!is_over.load()) {
      try {
        const std::string text = storage::read_text(shown);
        misreads += text != versions[0] && text != versions[1] ? 1 : 0;
      } catch (const storage::Error&) {
        ++misreads;
      }
    }
  });
  for (int i = 1; i <= kRenames; ++i) {
    const fs::path next = scratch.file("next");
    storage::File file = storage::File::create(next);
    file.write_all(std::as_bytes(std::span(versions[i % 2])));
    file.close();
    fs::rename(next, shown);
  }
  is_over.store(true);
  reader.join();
  return misreads;
}

Finding check_rename(const Scratch& scratch) {
  storage::write_atomically(scratch.file("a"), "first");
  storage::write_atomically(scratch.file("b"), "second");
  storage::publish(scratch.file("b"), scratch.file("a"));
  const bool replaced =
      storage::read_text(scratch.file("a")) == "second" && !fs::exists(scratch.file("b"));
  const char* fix = "put the run on a POSIX file system (no object store mount)";
  if (!replaced) return {"rename", Level::kFail, "the renamed file does not show", fix};
  const int misreads = misreads_while_renaming(scratch);
  if (misreads == 0) {
    return {"rename",
            Level::kOk,
            "replaces at once: " + std::to_string(kRenames) + " renames, no reader saw a gap",
            ""};
  }
  return {
      "rename",
      Level::kFail,
      std::to_string(misreads) + " reads found no file, or a part of one, while it was replaced",
      fix};
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

// hedgerow does not need locks, but HDF5 takes them when it opens a file.
Finding check_locks(const Scratch& scratch, const MachineFacts& facts) {
  constexpr const char* kVariable = "HDF5_USE_FILE_LOCKING";
  const std::string setting = facts.variable(kVariable).value_or("");
  const std::string said = setting.empty() ? "" : std::string(kVariable) + "=" + one_line(setting);
  if (setting == "FALSE" || setting == "0" || setting == "BEST_EFFORT")
    return {"file locks", Level::kOk, "not taken: " + said, ""};
  const storage::File file = storage::File::create(scratch.file("lock"));
  const bool works = flock(file.descriptor(), LOCK_EX | LOCK_NB) == 0;
  const bool is_known = setting.empty() || setting == "TRUE" || setting == "1";
  if (works && is_known) return {"file locks", Level::kOk, "work", ""};
  if (works) {
    return {
        "file locks", Level::kWarn, said, std::string("HDF5 knows TRUE, FALSE and BEST_EFFORT")};
  }
  return {"file locks",
          Level::kFail,
          "flock is refused" + (said.empty() ? "" : ", and " + said),
          std::string("HDF5 takes one on each file that it opens: set ") + kVariable + "=FALSE"};
}

struct KnownFileSystem {
  std::uint64_t magic;  // statfs(2), linux/magic.h
  const char* name;
  enum { kLocal, kShared, kFleeting } kind;
};
constexpr std::array kFileSystems{
    KnownFileSystem{0xEF53, "ext4", KnownFileSystem::kLocal},
    KnownFileSystem{0x58465342, "xfs", KnownFileSystem::kLocal},
    KnownFileSystem{0x9123683E, "btrfs", KnownFileSystem::kLocal},
    KnownFileSystem{0x2FC12FC1, "zfs", KnownFileSystem::kLocal},
    KnownFileSystem{0x6969, "NFS", KnownFileSystem::kShared},
    KnownFileSystem{0x0BD00BD0, "Lustre", KnownFileSystem::kShared},
    KnownFileSystem{0x47504653, "GPFS", KnownFileSystem::kShared},
    KnownFileSystem{0x00C36400, "CephFS", KnownFileSystem::kShared},
    KnownFileSystem{0x19830326, "BeeGFS", KnownFileSystem::kShared},
    KnownFileSystem{0x65735546, "FUSE", KnownFileSystem::kShared},
    KnownFileSystem{0x01021994, "tmpfs", KnownFileSystem::kFleeting},
    KnownFileSystem{0x794C7630, "overlayfs", KnownFileSystem::kFleeting},
    KnownFileSystem{0x73717368, "squashfs", KnownFileSystem::kFleeting},
};

Finding check_file_system(const fs::path& directory) {
  struct statfs status {};
  if (::statfs(directory.c_str(), &status) != 0)
    return {"file system", Level::kWarn, "of an unknown kind", "check the mount"};
  const auto magic = static_cast<std::uint64_t>(status.f_type) & 0xFFFFFFFFU;
  const auto* known = std::ranges::find(kFileSystems, magic, &KnownFileSystem::magic);
  if (known == kFileSystems.end())
    return {"file system", Level::kOk, "of another kind than those that are known here", ""};
  const std::string name = known->name;
  switch (known->kind) {
    case KnownFileSystem::kFleeting:
      return {"file system",
              Level::kWarn,
              name + ": what is written there goes with the machine or the container",
              "mount a disk or a shared file system, and put the run there"};
    case KnownFileSystem::kShared:
      return {"file system",
              Level::kOk,
              name + ", shared: 'doctor --peers N' on N nodes at once shows how they see it",
              ""};
    case KnownFileSystem::kLocal:
      break;
  }
  return {
      "file system", Level::kOk, name + ", of this machine: workers elsewhere cannot see it", ""};
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
  struct statvfs status {};
  // File systems that make inodes as they need them say 0 of all.
  if (::statvfs(directory.c_str(), &status) == 0 && status.f_files > 0 &&
      status.f_favail < kWantedFiles) {
    return {"free space",
            Level::kWarn,
            "room for " + std::to_string(status.f_favail) + " more files alone",
            "shards, checkpoints and logs may be thousands: remove files, or ask for more inodes"};
  }
  if (!needed) {
    return {"free space",
            Level::kOk,
            bytes_text(free) + "; with --recipe it is held against what the plan needs",
            ""};
  }
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
                                       const MachineFacts& facts,
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
  guarded("file system", [&] { return check_file_system(directory); });
  guarded("rename", [&] { return check_rename(*scratch); });
  guarded("fsync", [&] { return check_fsync(*scratch); });
  guarded("write speed", [&] { return check_write_speed(*scratch); });
  guarded("file locks", [&] { return check_locks(*scratch, facts); });
  guarded("clock", [&] { return check_clock(*scratch); });
  guarded("free space", [&] { return check_space(directory, needed_bytes); });
  return findings;
}

}  // namespace hedgerow::coordinator::cli
