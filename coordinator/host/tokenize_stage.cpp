#include "coordinator/host/tokenize_stage.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "storage/base/error.hpp"
#include "storage/base/utc.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::chrono::seconds kFresh{30};

void keep_beating(const std::stop_token& token,
                  const std::filesystem::path& path,
                  wire::CoordinatorFile file) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (!wake.wait_for(
      lock, token, wire::kHeartbeatInterval, [&token] { return token.stop_requested(); })) {
    ++file.heartbeat_count;
    try {
      wire::write_coordinator_file(path, file);
    } catch (const storage::Error&) {
      continue;  // what keeps this from being written the tokenizer meets too, and says it
    }
  }
}

// Who prepares the run, if the file is of a living one.
std::optional<wire::CoordinatorFile> running_at(const std::filesystem::path& path) {
  auto file = wire::read_coordinator_file(path);
  if (!file) return std::nullopt;
  if (file->host == wire::this_host())
    return wire::is_alive(file->process) ? std::move(file) : std::nullopt;
  std::error_code gone;
  const auto written = std::filesystem::last_write_time(path, gone);
  if (gone || std::filesystem::file_time_type::clock::now() - written > kFresh) return std::nullopt;
  return file;
}

// A lock on the directory itself, which the kernel takes back from a process that dies. Where the
// file system has no locks there is none, and no message says so.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::filesystem::path& directory)
      : descriptor_(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (descriptor_ >= 0) ::flock(descriptor_, LOCK_EX);
  }
  ~DirectoryLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_;
};

// Removes the file of a dead process. Since it was read, a living one may have replaced it: with
// the lock that is seen, without it that file is put back.
void take_away_dead(const std::filesystem::path& path, const std::filesystem::path& aside) {
  const DirectoryLock lock(path.parent_path());
  if (running_at(path)) return;
  std::error_code is_gone;
  std::filesystem::rename(path, aside, is_gone);
  if (is_gone) return;
  const storage::ScopedFile taken(aside);
  if (running_at(aside)) static_cast<void>(storage::publish_first(aside, path));
}

// Of several processes that find the run free, one gets through. The file of a dead process is
// taken away. Should three processes do that at the same moment where no lock can be had, the
// journal still keeps them apart.
storage::ScopedFile claim(const storage::RunLayout& layout,
                          const wire::CoordinatorFile& file,
                          const Leftovers& known) {
  const std::filesystem::path path = layout.tokenize_stage_file();
  const std::filesystem::path own =
      path.string() + "." + file.host + "-" + std::to_string(file.process.pid);
  const storage::ScopedFile unpublished(own);
  for (;;) {
    wire::write_coordinator_file(own, file);
    if (storage::publish_first(own, path)) return storage::ScopedFile(path);
    static_cast<void>(refuse_if_held(layout, {}, known));
    take_away_dead(path, own.string() + ".taken");
  }
}

wire::CoordinatorFile own_file() {
  return {.host = wire::this_host(),
          .process = wire::this_process(),
          .term = 0,
          .endpoint = "",
          .started_at = storage::utc_now(),
          .heartbeat_count = 0,
          .children = {}};
}

}  // namespace

TokenizeStage::TokenizeStage(const storage::RunLayout& layout, const Leftovers& known)
    : file_(claim(layout, own_file(), known)) {
  // One that was faster may be a coordinator by now, and prepare nothing any more.
  static_cast<void>(refuse_if_held(layout, {}, known));
  heartbeats_ = std::jthread([path = layout.tokenize_stage_file()](const std::stop_token& token) {
    keep_beating(token, path, own_file());
  });
}

std::optional<wire::CoordinatorFile> running_tokenize_stage(const storage::RunLayout& layout) {
  return running_at(layout.tokenize_stage_file());
}

}  // namespace hedgerow::coordinator
