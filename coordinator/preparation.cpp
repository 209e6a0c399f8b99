#include "coordinator/preparation.hpp"

#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "storage/error.hpp"
#include "storage/utc.hpp"

namespace hedgerow::coordinator {
namespace {

constexpr std::chrono::seconds kFresh{30};

void keep_beating(const std::stop_token& token,
                  const std::filesystem::path& path,
                  wire::CoordinatorFile file) {
  std::mutex mutex;
  std::condition_variable_any wake;
  std::unique_lock lock(mutex);
  while (
      !wake.wait_for(lock, token, wire::kBeatEvery, [&token] { return token.stop_requested(); })) {
    ++file.beat;
    try {
      wire::write_coordinator_file(path, file);
    } catch (const storage::Error&) {
      continue;  // what keeps this from being written the tokenizer meets too, and says it
    }
  }
}

}  // namespace

Preparation::Preparation(const storage::RunLayout& layout) : layout_(layout) {
  const wire::CoordinatorFile file{.host = wire::this_host(),
                                   .process = wire::this_process(),
                                   .term = 0,
                                   .endpoint = "",
                                   .started_at = storage::utc_now(),
                                   .beat = 0,
                                   .children = {}};
  const std::filesystem::path path = layout_.preparation_file();
  wire::write_coordinator_file(path, file);
  beats_ =
      std::jthread([path, file](const std::stop_token& token) { keep_beating(token, path, file); });
}

Preparation::~Preparation() {
  beats_.request_stop();
  beats_.join();
  std::error_code ignored;  // its process is gone soon, and then it counts for nothing
  std::filesystem::remove(layout_.preparation_file(), ignored);
}

std::optional<wire::CoordinatorFile> living_preparation(const storage::RunLayout& layout) {
  const std::filesystem::path path = layout.preparation_file();
  auto file = wire::read_coordinator_file(path);
  if (!file) return std::nullopt;
  if (file->host == wire::this_host())
    return wire::is_alive(file->process) ? std::move(file) : std::nullopt;
  std::error_code gone;
  const auto written = std::filesystem::last_write_time(path, gone);
  if (gone || std::filesystem::file_time_type::clock::now() - written > kFresh) return std::nullopt;
  return file;
}

}  // namespace hedgerow::coordinator
