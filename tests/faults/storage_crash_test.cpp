// Storage at its worst moments: killed before, or failed by, the Nth system call of each kind, for
// every N until the job completes; and a disk that is full at every point of it. After each: what
// was acknowledged is there, whole, and the job resumes to the same files. (SQLite's way of
// testing; strace is the fault injector.)
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ostream>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
#include "tests/faults/storage_crash_job.hpp"
#include "tests/support/temporary_directory.hpp"

namespace hedgerow::tests {
namespace {

namespace fs = std::filesystem;
using storage::RunLayout;

int exit_status(const std::string& command) {
  const int status = std::system((command + " 2>/dev/null").c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string strace(const fs::path& log, const std::string& call) {
  return "strace -qq -o " + log.string() + " -e trace=" + call + " ";
}

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += "\n  " + line;
  return text;
}

enum class Outcome {
  kStops,      // the process must not go on as if nothing had happened
  kCompletes,  // it must
  kEither,     // some of the calls are the dynamic linker's or only release something
};

struct Fault {
  const char* name;
  const char* call;    // as strace -e trace= names it
  const char* effect;  // as strace -e inject= names it
  Outcome outcome;
};

void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class EveryNthCall : public ::testing::TestWithParam<Fault> {
 protected:
  void begin() {
    fs::remove_all(directory_ / "run");
    storage::write_atomically(directory_ / "acknowledged", "");
  }
  [[nodiscard]] std::string writer() const {
    return std::string(HEDGEROW_CRASH_WRITER) + " " + layout_.root().string() + " " +
           (directory_ / "acknowledged").string();
  }
  [[nodiscard]] int num_acknowledged() const {
    return static_cast<int>(fs::file_size(directory_ / "acknowledged"));
  }
  // How often an undisturbed job makes the call, those of the dynamic linker included.
  int count_calls() {
    begin();
    const fs::path log = directory_ / "strace.log";
    EXPECT_EQ(exit_status(strace(log, GetParam().call) + writer()), 0);
    const std::string text = storage::read_text(log);
    return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  }

  TemporaryDirectory directory_;
  RunLayout layout_{directory_ / "run"};
  CrashJob job_;
};

TEST_P(EveryNthCall, LosesNothingThatWasAcknowledgedAndResumesToTheSameFiles) {
  const Fault& fault = GetParam();
  if (exit_status("strace -qq -o /dev/null true") != 0)
    GTEST_SKIP() << "strace is absent or may not trace here";
  const int num_calls = count_calls();
  ASSERT_GT(num_calls, 0) << fault.call;
  int num_disturbed = 0;
  for (int n = 1; n <= num_calls; ++n) {
    SCOPED_TRACE(std::string(fault.effect) + " at call " + std::to_string(n) + " of " + fault.call);
    begin();
    const std::string inject = std::string("-e inject=") + fault.call + ":" + fault.effect +
                               ":when=" + std::to_string(n) + " ";
    const int status = exit_status(strace("/dev/null", fault.call) + inject + writer());
    num_disturbed += status != 0 ? 1 : 0;
    if (fault.outcome != Outcome::kEither) {
      ASSERT_EQ(status == 0, fault.outcome == Outcome::kCompletes) << "exit status " << status;
    }
    std::vector<std::string> broken = judge(job_, layout_, num_acknowledged());
    ASSERT_TRUE(broken.empty()) << joined(broken);
    ASSERT_EQ(exit_status(writer()), 0) << "the job does not resume";
    broken = judge(job_, layout_, job_.num_files);
    ASSERT_TRUE(broken.empty()) << "after the resume:" << joined(broken);
    ASSERT_TRUE(read_crash_job(layout_).replayed.damage.empty())
        << "the new term seals a torn tail away";
  }
  if (fault.outcome == Outcome::kEither) {
    EXPECT_GT(num_disturbed, 0) << "no fault had an effect: is the injector at work?";
  }
}

// strace kills before the call: at write N the bytes of that write are not there, those of the one
// before are.
INSTANTIATE_TEST_SUITE_P(
    Storage,
    EveryNthCall,
    ::testing::Values(Fault{"KilledAtWrite", "write", "signal=KILL", Outcome::kStops},
                      Fault{"KilledAtFsync", "fsync", "signal=KILL", Outcome::kStops},
                      Fault{"KilledAtRename", "/^rename", "signal=KILL", Outcome::kStops},
                      Fault{"KilledAtOpen", "openat", "signal=KILL", Outcome::kStops},
                      Fault{"KilledAtMkdir", "mkdir", "signal=KILL", Outcome::kStops},
                      Fault{"WriteFails", "write", "error=EIO", Outcome::kStops},
                      Fault{"DiskFullAtWrite", "write", "error=ENOSPC", Outcome::kStops},
                      Fault{"FsyncFails", "fsync", "error=EIO", Outcome::kStops},
                      Fault{"QuotaAtFsync", "fsync", "error=EDQUOT", Outcome::kStops},
                      Fault{"RenameFails", "/^rename", "error=EIO", Outcome::kStops},
                      Fault{"CloseFails", "close", "error=EIO", Outcome::kEither},
                      Fault{"WriteInterrupted", "write", "error=EINTR", Outcome::kCompletes},
                      Fault{"FsyncInterrupted", "fsync", "error=EINTR", Outcome::kCompletes}),
    [](const auto& test) { return std::string(test.param.name); });

// A tmpfs of 1 MiB, so that "no space left" is the kernel's own.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& path) : path_(path) {
    fs::create_directories(path_);
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, "size=1m") == 0;
    error_number_ = mounted_ ? 0 : errno;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  [[nodiscard]] bool mounted() const { return mounted_; }
  [[nodiscard]] std::string reason() const { return std::strerror(error_number_); }

 private:
  fs::path path_;
  bool mounted_ = false;
  int error_number_ = 0;
};

TEST(FullDisk, AtEveryPointOfAJobItSaysSoKeepsWhatWasAcknowledgedAndResumesAfterwards) {
  const TemporaryDirectory directory;
  const SmallDisk disk(directory / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "a tmpfs cannot be mounted here: " << disk.reason();
  const CrashJob job{.num_files = 5, .file_bytes = 40'000, .snapshot_after = 3};
  const fs::path filler = directory / "disk" / "filler";
  constexpr std::size_t kPage = 4096;
  int num_full = 0;
  for (std::size_t pages_left = 1; pages_left <= 90; ++pages_left) {
    SCOPED_TRACE(std::to_string(pages_left) + " pages free");
    const RunLayout layout(directory / "disk" / "run");
    fs::remove_all(layout.root());
    fs::create_directories(layout.root());
    storage::write_atomically(
        filler, std::string(storage::free_bytes(filler.parent_path()) - pages_left * kPage, 'x'));
    int num_acknowledged = 0;
    try {
      run_crash_job(job, layout, [&](int) { ++num_acknowledged; });
    } catch (const storage::Error& error) {
      ++num_full;
      ASSERT_EQ(error.kind(), storage::ErrorKind::kExhausted) << error.what();
      ASSERT_NE(std::string(error.what()).find("free space"), std::string::npos) << error.what();
    } catch (const fs::filesystem_error& error) {
      ++num_full;
      ASSERT_EQ(error.code().value(), ENOSPC) << error.what();
    }
    std::vector<std::string> broken = judge(job, layout, num_acknowledged);
    ASSERT_TRUE(broken.empty()) << joined(broken);
    fs::remove(filler);
    ASSERT_NO_THROW(run_crash_job(job, layout, [](int) {}));
    broken = judge(job, layout, job.num_files);
    ASSERT_TRUE(broken.empty()) << "after space was made:" << joined(broken);
  }
  EXPECT_GT(num_full, 40) << "the disk was hardly ever full";
  EXPECT_LT(num_full, 90) << "the job never completed: the last rounds must have space";
}

}  // namespace
}  // namespace hedgerow::tests
