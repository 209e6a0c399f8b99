#include "worker/client/task_inputs.hpp"

#include <chrono>

#include "storage/base/error.hpp"
#include "storage/check.hpp"
#include "storage/files/file.hpp"
#include "storage/files/hash.hpp"
#include "storage/json/json_fields.hpp"

namespace hedgerow::worker {
namespace {

constexpr std::uint64_t kMaxInputsBytes = 256U << 20;  // a million shards

}  // namespace

wire::Task with_inputs(const storage::RunLayout& layout, wire::Task task) {
  if (!task.inputs_file) return task;
  const std::filesystem::path path = layout.resolve(task.inputs_file->name);
  storage::wait_until_visible(path, std::chrono::seconds(90));
  if (storage::hash_file(path) != task.inputs_file->root_hash) {
    throw storage::Error(storage::ErrorKind::kCorrupt,
                         path.string() + ": not the list that the coordinator wrote");
  }
  task.inputs = storage::records_from_json(
      storage::parse_document(storage::read_text(path, kMaxInputsBytes)), "inputs");
  return task;
}

void verify_inputs(const storage::RunLayout& layout,
                   const wire::Task& task,
                   std::chrono::milliseconds timeout) {
  for (const storage::FileRecord& file : task.inputs) {
    const std::filesystem::path path = layout.resolve(file.name);
    if (file.size == 0 || path.extension() == ".h5") continue;
    storage::wait_until_visible(path, timeout);
    storage::verify_file(path, file);
  }
}

std::vector<std::string> damaged_files(const storage::RunLayout& layout,
                                       const wire::Task& task,
                                       storage::ErrorKind kind,
                                       const std::string& message) {
  std::vector<std::string> damaged;
  const bool one_is_missing = kind == storage::ErrorKind::kNotFound;
  if (!one_is_missing && kind != storage::ErrorKind::kCorrupt) return damaged;
  const auto check = [&](const storage::FileRecord& file) {
    std::error_code unreadable;
    const bool is_named = message.find(file.name) != std::string::npos;
    if (is_named ||
        (one_is_missing && !std::filesystem::exists(layout.resolve(file.name), unreadable)))
      damaged.push_back(file.name);
  };
  for (const storage::FileRecord& file : task.inputs) check(file);
  if (task.resume) check(*task.resume);
  return damaged;
}

}  // namespace hedgerow::worker
