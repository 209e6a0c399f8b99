#include "worker/task_inputs.hpp"

#include <chrono>

#include "coordinator/wire/json_fields.hpp"
#include "storage/error.hpp"
#include "storage/file.hpp"
#include "storage/hash.hpp"

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
  task.inputs = wire::records_from_json(
      wire::parse_document(storage::read_text(path, kMaxInputsBytes)), "inputs");
  return task;
}

}  // namespace hedgerow::worker
