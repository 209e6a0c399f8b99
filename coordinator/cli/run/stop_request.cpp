#include "coordinator/cli/run/stop_request.hpp"

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/files/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

constexpr std::chrono::milliseconds kLookForRequestEvery{500};

}  // namespace

void request_stop(const storage::RunLayout& layout) {
  storage::write_atomically(layout.stop_file(), "stop\n");
}

void withdraw_stop(const storage::RunLayout& layout) {
  std::error_code ignored;
  std::filesystem::remove(layout.stop_file(), ignored);
}

StopWatcher::StopWatcher(const storage::RunLayout& layout)
    : thread_([file = layout.stop_file()](const std::stop_token& token) {
        std::mutex mutex;
        std::condition_variable_any wake;
        std::unique_lock lock(mutex);
        while (!wake.wait_for(
            lock, token, kLookForRequestEvery, [&] { return token.stop_requested(); })) {
          std::error_code ignored;
          if (!std::filesystem::exists(file, ignored)) continue;
          interrupt();
          return;
        }
      }) {}

}  // namespace hedgerow::coordinator::cli
